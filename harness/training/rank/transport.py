"""The transport of the ranks of a sweep: gloo's interface, or what NCCL's own log says."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

#: As "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA" or "via P2P/direct pointer/read".
_CHANNEL = re.compile(r"Channel \d+.*? via (\S.*?)\s*$", re.M)
_DEVICE = re.compile(r"/\d+(?=/|$)")
_MULTICAST = "Connected NVLS tree"


def listen(backend: str, log: Path, subsystems: str = "INIT") -> None:
    """Have NCCL write down how it connects; to be called before the process group is made."""
    if backend == "nccl":
        os.environ |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": subsystems,
            "NCCL_DEBUG_FILE": str(log),
        }


def of_log(text: str) -> set[str]:
    """The ways that NCCL says it uses, as ``NET/IB/GDRDMA``; devices are not told apart."""
    ways = {_DEVICE.sub("", way) for way in _CHANNEL.findall(text)}
    return ways | {"NVLS"} if _MULTICAST in text else ways


def name(backend: str, log: Path) -> str:
    """The transport of all ranks together; a collective."""
    ways: set[str] = set()
    if backend == "gloo":
        ways = {os.environ.get("GLOO_SOCKET_IFNAME", "(any interface)")}
    elif log.is_file():
        ways = of_log(log.read_text(errors="replace", encoding="utf-8"))
    of_ranks: list[set[str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, ways)
    return _named(backend, set().union(*(theirs or set() for theirs in of_ranks)))


def _named(backend: str, ways: Iterable[str]) -> str:
    listed = ", ".join(sorted(ways))
    if backend == "gloo":
        return f"tcp {listed}"
    return f"{backend} {listed}" if listed else f"{backend}, transport not named in its log"
