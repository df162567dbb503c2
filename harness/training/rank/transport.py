"""Find out which transport a launch used.

For gloo the transport is named by its network interface. For NCCL the connections, and the
algorithm and protocol of each collective, are read from NCCL's log.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch.distributed as dist

from harness.record import Check

#: NCCL's algorithms and protocols in the order of its enumerations (nccl_common.h). Some versions
#: of NCCL log the number instead of the name.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
#: A line of NCCL's log about the choice for one collective. It has one of these forms, and the name
#: of the operation may be missing:
#: "AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}" or
#: "AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008".
_CHOSEN = re.compile(
    r"NCCL INFO (?:(?P<operation>\w+): +)?(?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto"
    r" (?P<proto>\w+)(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
#: The operation of a log line that does not name one.
ANY = "any"

#: Maps (operation, algorithm, protocol, channels) to the number of log lines that report it.
#: ``channels`` is 0 if the line does not report it.
Ran = Counter[tuple[str, str, str, int]]


def ran(log: str) -> Ran:
    """Count the choices (operation, algorithm, protocol, channels) that NCCL's log reports."""
    counts: Ran = Counter()
    for line in _CHOSEN.finditer(log):
        high, low = line["high"], line["low"]
        channels = 0 if high is None else int(high) - int(low) + 1
        algorithm = _named(line["algo"], ALGORITHMS)
        protocol = _named(line["proto"], PROTOCOLS)
        counts[line["operation"] or ANY, algorithm, protocol, channels] += 1
    return counts


def _named(word: str, names: tuple[str, ...]) -> str:
    """Return the upper-case name that NCCL logged, or the name that belongs to its number."""
    if not word.isdigit():
        return word.upper()
    number = int(word)
    return names[number] if number < len(names) else word


def allowed(asked: str, operation: str, names: tuple[str, ...]) -> set[str]:
    """Return the names that a value of NCCL_ALGO or NCCL_PROTO allows for an operation.

    Values have the forms ``ring``, ``^tree`` (all but tree) and ``ring,tree``. Since NCCL 2.24 they
    may also be ``ring;allreduce:tree``: a part with the name of an operation applies to it alone.
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
    """Return a name in the form in which names are compared: lower case without underscores."""
    return name.strip().replace("_", "").lower()


def checks(log: str, environment: Mapping[str, str]) -> Iterator[Check]:
    """Compare the choices in NCCL's log with those that the case's environment allows."""
    counts = ran(log)
    yield Check(name="nccl.ran", ok=True, detail=listed(counts) or "NCCL's log does not report it")
    for variable, place, names in (("NCCL_ALGO", 1, ALGORITHMS), ("NCCL_PROTO", 2, PROTOCOLS)):
        asked = environment.get(variable, "")
        if not asked or not counts:
            continue
        with_names = (key for key in counts if key[0] != ANY)
        wrong = sorted(key for key in with_names if key[place] not in allowed(asked, key[0], names))
        detail = (
            f"{variable}={asked}, but NCCL ran {_one(wrong[0])}" if wrong else f"{variable}={asked}"
        )
        yield Check(name=f"nccl.{variable.lower()}", ok=not wrong, detail=detail)


def listed(seen: Ran) -> str:
    """Return the choices and how often each was made, as text.

    For example ``AllGather by TREE LL (3); AllReduce by RING SIMPLE, 16 channels (12)``.
    """
    return "; ".join(f"{_one(key)} ({count})" for key, count in sorted(seen.items()))


def _one(key: tuple[str, str, str, int]) -> str:
    """Return one choice as text, for example ``AllReduce by RING SIMPLE, 16 channels``."""
    operation, algorithm, protocol, channels = key
    width = f", {channels} channels" if channels else ""
    return f"{operation} by {algorithm} {protocol}{width}"


#: A line of NCCL's log about one connection, for example
#: "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA" or "via P2P/direct pointer/read".
_CHANNEL = re.compile(r"Channel \d+.*? via (\S.*?)\s*$", re.M)
_DEVICE = re.compile(r"/\d+(?=/|$)")
_MULTICAST = "Connected NVLS tree"


def listen(backend: str, log: Path, subsystems: str = "INIT") -> None:
    """Make NCCL log to ``log``. Call this before the process group is made.

    ``subsystems`` selects what is logged: INIT reports connections, TUNING reports algorithms.
    """
    if backend == "nccl":
        os.environ |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": subsystems,
            "NCCL_DEBUG_FILE": str(log),
        }


def of_log(text: str) -> set[str]:
    """Return the kinds of connections in NCCL's log, for example ``NET/IB/GDRDMA``.

    The numbers of the devices are left out.
    """
    ways = {_DEVICE.sub("", way) for way in _CHANNEL.findall(text)}
    return ways | {"NVLS"} if _MULTICAST in text else ways


def name(backend: str, log: Path) -> str:
    """Return the transports that the ranks of the world use, in a collective of all ranks."""
    ways: set[str] = set()
    if backend == "gloo":
        ways = {os.environ.get("GLOO_SOCKET_IFNAME", "(any interface)")}
    elif log.is_file():
        ways = of_log(log.read_text(errors="replace", encoding="utf-8"))
    of_ranks: list[set[str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, ways)
    return _transport_named(backend, set().union(*(theirs or set() for theirs in of_ranks)))


def _transport_named(backend: str, ways: Iterable[str]) -> str:
    """Return a backend and its connections as text, for example ``nccl NET/IB, P2P``."""
    listed = ", ".join(sorted(ways))
    if backend == "gloo":
        return f"tcp {listed}"
    return f"{backend} {listed}" if listed else f"{backend}, transport not named in its log"
