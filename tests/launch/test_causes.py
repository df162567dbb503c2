"""The cause of a failed launch is the rank that failed first, not those that only noticed it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launch.causes import attribute
from harness.launch.wire.messages import Collective, RankEnd, RankError


def end(rank: int, **kw: Any) -> RankEnd:
    base: dict[str, Any] = dict(
        pid=100 + rank, exit_code=0, signal=None, killed=False, finished=True, phase="done",
        step=9, silent_s=0.1, order=rank,
    )  # fmt: skip
    return RankEnd(rank=rank, **{**base, **kw})


def peer(rank: int, order: int) -> RankEnd:
    error = RankError(
        type="RuntimeError", message="Connection closed by peer", traceback="", peer=True
    )
    return end(rank, exit_code=1, finished=False, error=error, order=order)


def own(rank: int, order: int) -> RankEnd:
    error = RankError(type="ValueError", message="bad shape\nmore", traceback="", peer=False)
    return end(rank, exit_code=1, finished=False, error=error, order=order)


WAITS = 'Thread 1 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 1 in f\n'
WORKS = 'Thread 1 (most recent call first):\n  File "/x/own/loader.py", line 1 in f\n'
KILLED: dict[str, Any] = dict(exit_code=None, signal=9, killed=True, finished=False)


def flight(*sizes: int, at_s: float = 0.0) -> tuple[Collective, ...]:
    """Return collectives of these sizes, the last of which was issued at ``at_s``."""
    return tuple(
        Collective(
            group="0", number=i, operation="all_reduce", sizes=f"[[{size}]] Float",
            created_s=at_s if i == len(sizes) else 0.0,
        )
        for i, size in enumerate(sizes, 1)
    )  # fmt: skip


def timed_out(rank: int, **kw: Any) -> RankEnd:
    return end(rank, exit_code=1, finished=False, error=peer(rank, 0).error, **kw)


@pytest.mark.parametrize(
    ("others", "rank", "kind", "sure"),
    [
        (dict(stack=WAITS, state="S"), 0, "collective", True),  # rank 0 called one too many
        (dict(stack=WAITS, state="R"), 1, "hang", False),  # the other ranks were only slow
        (dict(stack=WORKS, state="S"), 1, "hang", False),
    ],
)
def test_a_rank_ahead_of_others_is_the_cause_only_if_they_wait(
    others: dict[str, Any], rank: int, kind: str, sure: bool
) -> None:
    ahead = timed_out(0, flight=flight(16, 7), order=0)
    behind = [end(r, flight=flight(16), order=r, **KILLED, **others) for r in (1, 2)]
    cause = attribute([ahead, *behind])
    assert cause is not None and (cause.rank, cause.kind, cause.sure) == (rank, kind, sure)


@pytest.mark.parametrize(("state", "sure"), [("S", True), ("R", False)])
def test_a_rank_behind_the_others_is_the_sure_cause_unless_it_still_ran(
    state: str, sure: bool
) -> None:
    there = [timed_out(r, flight=flight(16, 32), order=r) for r in (0, 1)]
    behind = end(2, flight=flight(16), stack=WAITS, state=state, order=2, **KILLED)
    cause = attribute([*there, behind])
    assert cause is not None and (cause.rank, cause.kind, cause.sure) == (2, "collective", sure)


def test_a_rank_with_fewer_updates_than_finished_ranks_is_named() -> None:
    through = end(0, phase="finish", step=30, stack=WORKS, order=0, **KILLED)
    short = end(1, phase="steady", step=27, stack=WAITS, order=1, **KILLED)
    cause = attribute([through, short])
    assert cause is not None and (cause.rank, cause.kind, cause.sure) == (1, "collective", True)
    assert "has made 27 updates, rank 0 has made 30" in cause.message


@pytest.mark.parametrize("short", [dict(stack=WORKS), dict(stack=WAITS, step=30)])
def test_a_working_rank_or_one_with_as_many_updates_skips_none(short: dict[str, Any]) -> None:
    through = end(0, phase="finish", step=30, stack=WORKS, order=0, **KILLED)
    other = end(1, **{**dict(phase="steady", step=27, order=1), **KILLED, **short})
    cause = attribute([through, other])
    assert cause is not None and "updates" not in cause.message


def test_the_latest_rank_is_suspected_if_all_did_the_same() -> None:
    """The rank that timed out had waited for the late one."""
    at = {0: 10.0, 1: 10.1, 2: 13.2}
    cause = attribute([timed_out(r, flight=flight(16, at_s=s), order=r) for r, s in at.items()])
    assert cause is not None and (cause.rank, cause.kind, cause.sure) == (2, "late", False)
    assert cause.message == "entered collective 1, all_reduce, 3.2 s after the first rank"


def test_less_than_a_second_does_not_count_as_late() -> None:
    at = {0: 10.0, 1: 10.1, 2: 10.9}
    cause = attribute([timed_out(r, flight=flight(16, at_s=s), order=r) for r, s in at.items()])
    assert cause is not None and cause.kind == "peer"


def test_there_is_no_cause_if_all_ranks_finished() -> None:
    assert attribute([end(0), end(1)]) is None


def test_an_original_exception_beats_peer_errors_that_came_first() -> None:
    cause = attribute([peer(0, 0), peer(1, 1), own(2, 2), peer(3, 3)])
    assert cause is not None
    assert (cause.rank, cause.kind, cause.sure) == (2, "exception", True)
    assert cause.message == "ValueError: bad shape"
    assert cause.victims == (0, 1, 3)


def test_an_external_signal_beats_peer_errors() -> None:
    cause = attribute([peer(0, 0), end(1, exit_code=None, signal=9, finished=False, order=1)])
    assert cause is not None and (cause.rank, cause.kind) == (1, "signal")
    assert "SIGKILL" in cause.message


def test_a_rank_that_aborts_beats_one_that_was_outside_a_collective() -> None:
    """A device assertion does this before other ranks come to their next collective."""
    aborted = end(1, exit_code=None, signal=6, finished=False, order=0)
    cause = attribute(
        [end(0, stack=WAITS, order=1, **KILLED), aborted, end(2, stack=WORKS, order=2, **KILLED)]
    )
    assert cause is not None
    assert (cause.rank, cause.kind, cause.sure) == (1, "signal", True)


def test_a_kill_by_the_agent_is_no_cause() -> None:
    killed = end(0, exit_code=None, signal=9, killed=True, finished=False, order=1)
    early = end(1, exit_code=0, finished=False, order=0)
    cause = attribute([killed, early])
    assert cause is not None and (cause.rank, cause.kind) == (1, "exit")


def test_in_a_hang_the_stopped_rank_is_sure_and_the_silent_one_suspected() -> None:
    ended = dict(exit_code=None, signal=9, killed=True, finished=False)
    stopped = attribute(
        [end(0, **ended, state="S", silent_s=9.0), end(1, **ended, state="T", silent_s=8.0)]
    )
    assert stopped is not None and (stopped.rank, stopped.sure) == (1, True)
    silent = attribute(
        [end(0, **ended, state="S", silent_s=3.0), end(1, **ended, state="S", silent_s=9.0)]
    )
    assert silent is not None and (silent.rank, silent.sure) == (1, False)


def test_if_all_others_report_peer_errors_the_silent_rank_is_suspected() -> None:
    hung = end(
        2, exit_code=None, signal=9, killed=True, finished=False, state="T", silent_s=12.0, order=2
    )
    cause = attribute([peer(0, 0), peer(1, 1), hung])
    assert cause is not None and cause.rank == 2


NCCL_TEXTS = [
    "CUDA error: an illegal memory access was encountered",
    "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error",
    "[PG ID 0] ncclUnhandledCudaError: Call to CUDA function failed.",
    "CUDA error: unspecified launch failure",
]


def on_device(rank: int, order: int, message: str) -> RankEnd:
    error = RankError(type="AcceleratorError", message=message, traceback="", peer=False)
    return end(rank, exit_code=1, finished=False, error=error, order=order)


@pytest.mark.parametrize("message", NCCL_TEXTS)
def test_a_dead_peers_memory_makes_victims_not_culprits(message: str) -> None:
    """Over NVLink, other ranks read the memory of a killed rank, and raise errors first."""
    dead = end(2, exit_code=None, signal=9, finished=False, order=3)
    cause = attribute([on_device(0, 0, message), on_device(1, 1, message), dead])
    assert cause is not None and (cause.rank, cause.kind, cause.sure) == (2, "signal", True)


@pytest.mark.parametrize("message", NCCL_TEXTS)
def test_an_original_exception_beats_device_errors(message: str) -> None:
    cause = attribute([on_device(0, 0, message), own(1, 1)])
    assert cause is not None and (cause.rank, cause.sure) == (1, True)


@pytest.mark.parametrize("message", NCCL_TEXTS)
def test_if_all_ranks_have_device_errors_the_cause_is_unsure(message: str) -> None:
    cause = attribute([on_device(rank, rank, message) for rank in range(3)])
    assert cause is not None and not cause.sure
    alone = attribute([on_device(0, 0, message), end(1)])
    assert alone is not None and (alone.rank, alone.sure) == (0, True)


def test_of_two_ranks_with_different_collectives_neither_is_surely_wrong() -> None:
    cause = attribute(
        [end(0, **KILLED, flight=flight(4, 8)), end(1, **KILLED, flight=flight(4, 9))]
    )
    assert cause is not None and not cause.sure
    assert "rank 1 runs" in cause.message or "rank 0 runs" in cause.message
    assert cause.message.endswith("with the evidence of two ranks it is unknown which one is wrong")
