"""The transport of a launch: gloo's interface, or the algorithm and protocol in NCCL's log."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch.distributed as dist

from harness.record import Check

#: NCCL's own order of both (nccl_common.h).
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
#: As "AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}", as
#: "AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008", and without a name.
_CHOSEN = re.compile(
    r"NCCL INFO (?:(?P<operation>\w+): +)?(?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto"
    r" (?P<proto>\w+)(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
#: What a collective without a name is called.
ANY = "any"

#: (operation, algorithm, protocol, channels or 0 where that is not told) -> how often.
Ran = Counter[tuple[str, str, str, int]]


def ran(log: str) -> Ran:
    """The choices that NCCL logs, collective by collective."""
    counts: Ran = Counter()
    for line in _CHOSEN.finditer(log):
        high, low = line["high"], line["low"]
        channels = 0 if high is None else int(high) - int(low) + 1
        algorithm = _named(line["algo"], ALGORITHMS)
        protocol = _named(line["proto"], PROTOCOLS)
        counts[line["operation"] or ANY, algorithm, protocol, channels] += 1
    return counts


def _named(word: str, names: tuple[str, ...]) -> str:
    """A number's name; what NCCL named itself as it is, in capitals."""
    if not word.isdigit():
        return word.upper()
    number = int(word)
    return names[number] if number < len(names) else word


def allowed(asked: str, operation: str, names: tuple[str, ...]) -> set[str]:
    """Which names a value of NCCL_ALGO or NCCL_PROTO leaves for an operation.

    ``ring``, ``^tree``, ``ring,tree``, and since 2.24 ``ring;allreduce:tree``: what stands behind
    an operation's name holds for it alone.
    """
    all_names = set(names)
    chosen = all_names
    for part in filter(None, asked.split(";")):
        function, colon, listed = part.rpartition(":")
        if colon and function.strip().lower() != operation.lower():
            continue
        excluded = listed.strip().startswith("^")
        words = {_alike(word) for word in listed.strip().lstrip("^").split(",")}
        named = {name for name in all_names if _alike(name) in words}
        chosen = all_names - named if excluded else named
    return chosen


def _alike(name: str) -> str:
    return name.strip().replace("_", "").lower()


def checks(log: str, environment: Mapping[str, str]) -> Iterator[Check]:
    """Checks what ran against what the case's environment asks for."""
    counts = ran(log)
    yield Check(name="nccl.ran", ok=True, detail=listed(counts) or "not told by NCCL's log")
    for variable, place, names in (("NCCL_ALGO", 1, ALGORITHMS), ("NCCL_PROTO", 2, PROTOCOLS)):
        asked = environment.get(variable, "")
        if not asked or not counts:
            continue
        with_names = (key for key in counts if key[0] != ANY)
        wrong = sorted(key for key in with_names if key[place] not in allowed(asked, key[0], names))
        detail = f"{variable}={asked}, but {_one(wrong[0])}" if wrong else f"{variable}={asked}"
        yield Check(name=f"nccl.{variable.lower()}", ok=not wrong, detail=detail)


def listed(seen: Ran) -> str:
    """``AllReduce: RING SIMPLE, 16 channels (12), TREE LL (3)``"""
    return "; ".join(f"{_one(key)} ({count})" for key, count in sorted(seen.items()))


def _one(key: tuple[str, str, str, int]) -> str:
    operation, algorithm, protocol, channels = key
    width = f", {channels} channels" if channels else ""
    return f"{operation} by {algorithm} {protocol}{width}"


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
    return _transport_named(backend, set().union(*(theirs or set() for theirs in of_ranks)))


def _transport_named(backend: str, ways: Iterable[str]) -> str:
    listed = ", ".join(sorted(ways))
    if backend == "gloo":
        return f"tcp {listed}"
    return f"{backend} {listed}" if listed else f"{backend}, transport not named in its log"
