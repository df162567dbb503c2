"""What the ranks of a sweep talk over: gloo's interface, or what NCCL's own log says."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

#: As "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA" or "via P2P/direct pointer/read".
_CHANNEL = re.compile(r"Channel \d+.*? via (\S.*?)\s*$", re.M)
_DEVICE = re.compile(r"/\d+(?=/|$)")
_MULTICAST = "Connected NVLS tree"


def listen(backend: str, log: Path) -> None:
    """Have NCCL write down how it connects; to be called before the process group is made."""
    if backend == "nccl":
        os.environ |= {
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": str(log)
        }  # fmt: skip


def of_log(text: str) -> set[str]:
    """The ways that NCCL says it uses, as ``NET/IB/GDRDMA``; devices are not told apart."""
    found = {_DEVICE.sub("", way) for way in _CHANNEL.findall(text)}
    return found | {"NVLS"} if _MULTICAST in text else found


def name(backend: str, log: Path) -> str:
    """What all ranks together talk over; a collective."""
    own: set[str] = set()
    if backend == "gloo":
        own = {os.environ.get("GLOO_SOCKET_IFNAME", "(any interface)")}
    elif log.is_file():
        own = of_log(log.read_text(errors="replace"))
    every: list[set[str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return _named(backend, set().union(*(found or set() for found in every)))


def _named(backend: str, ways: Iterable[str]) -> str:
    said = ", ".join(sorted(ways))
    if backend == "gloo":
        return f"tcp {said}"
    return f"{backend} {said}" if said else f"{backend}, by no channel that its log names"
