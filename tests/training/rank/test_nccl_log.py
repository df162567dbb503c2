"""NCCL's log, as several versions print it, shows what ran, and whether it was requested."""

from __future__ import annotations

import pytest

from harness.training.rank import transport
from harness.training.rank.transport import ALGORITHMS, PROTOCOLS

#: A log of NCCL 2.24 and later, on 8 GPUs of a node.
NAMED = """\
n1:4242:4301 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
n1:4242:4301 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
n1:4242:4301 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
n1:4242:4301 [0] NCCL INFO AllGather: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
n1:4242:4301 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
#: A log of NCCL 2.23, which prints numbers and the operation's name.
NUMBERS = """\
node-0:309:309 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008
node-3:278:278 [0] NCCL INFO AllGather: opCount 1606 sendbuff 0x93fd44a00 recvbuff 0x96d44e200
"""
#: A log of earlier versions.
BARE = "h1:16:41 [0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594\n"


def test_algorithms_are_read_from_logs_of_each_version() -> None:
    assert transport.ran(NAMED) == {
        ("AllReduce", "TREE", "LL", 2): 1,
        ("AllReduce", "RING", "LL128", 16): 2,
        ("AllGather", "NVLS", "SIMPLE", 16): 1,
    }
    assert transport.ran(NUMBERS) == {("AllGather", "RING", "SIMPLE", 0): 1}
    assert transport.ran(BARE) == {("any", "RING", "SIMPLE", 0): 1}
    assert not transport.ran(
        "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
    )


@pytest.mark.parametrize(
    ("asked", "operation", "left"),
    [
        ("ring", "AllReduce", {"RING"}),
        ("Ring,Tree", "AllReduce", {"RING", "TREE"}),
        ("^tree", "AllReduce", set(ALGORITHMS) - {"TREE"}),
        ("allreduce:ring", "AllReduce", {"RING"}),
        ("allreduce:ring", "AllGather", set(ALGORITHMS)),
        ("ring;allreduce:nvlstree,nvls", "AllReduce", {"NVLS", "NVLS_TREE"}),
        ("ring;allreduce:tree", "ReduceScatter", {"RING"}),
    ],
)
def test_algorithms_that_a_variable_allows(asked: str, operation: str, left: set[str]) -> None:
    assert transport.allowed(asked, operation, ALGORITHMS) == left
    assert transport.allowed("LL128", operation, PROTOCOLS) == {"LL128"}


@pytest.mark.parametrize(
    ("log", "environment", "wrong"),
    [
        (NAMED, {}, []),
        (NAMED, {"NCCL_ALGO": "allreduce:ring,tree"}, []),
        (NAMED, {"NCCL_ALGO": "allreduce:ring"}, ["nccl.nccl_algo"]),
        (NAMED, {"NCCL_ALGO": "^nvls"}, ["nccl.nccl_algo"]),
        (NAMED, {"NCCL_PROTO": "^LL"}, ["nccl.nccl_proto"]),
        (NUMBERS, {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}, []),
        ("", {"NCCL_ALGO": "Ring"}, []),
    ],
)
def test_an_algorithm_that_was_not_requested_is_wrong(
    log: str, environment: dict[str, str], wrong: list[str]
) -> None:
    checks = list(transport.checks(log, environment))
    assert [c.name for c in checks if not c.ok] == wrong
    assert checks[0].name == "nccl.ran"
    assert ("does not report" in checks[0].detail) == (not log)
