"""Read what NCCL Inspector wrote in a running job: the time of each collective on each rank.

The plugin writes one JSON object a line and rank: a header with the communicator and the rank, and
the kind, number, size and duration of a collective. A duration includes waiting for the last rank.
The shortest duration over the ranks is therefore the transfer, and the rest of each rank's duration
is its waiting. No clocks are compared. RCCL's Inspector writes the same format.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.documents import Json
from harness.base.errors import ScaleproofError
from harness.base.packs import opened

#: Words of which one is in the first lines of every file of the plugin.
_MARKS = (b'"coll_perf"', b'"dump_stats"', b'"p2p_perf"')
#: Number of first bytes in which a mark is searched.
_FIRST = 4096


@dataclass(frozen=True, kw_only=True)
class InspectedKind:
    """All collectives of one kind. Times are sums in s, and ``wait_s`` is the mean over ranks."""

    kind: str
    count: int
    payload_bytes: int
    transfer_s: float
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """The collectives of a job as its ranks recorded them.

    ``waits_s`` maps a rank to the time in s that it waited. ``incomplete`` counts collectives that
    some ranks did not record, which are left out. ``dropped`` counts records that the plugin itself
    reports as lost, or whose numbers are missing.
    """

    num_ranks: int
    kinds: tuple[InspectedKind, ...]
    waits_s: dict[int, float]
    incomplete: int
    dropped: int


@dataclass(frozen=True)
class _RankCollective:
    """One collective on one rank."""

    communicator: str
    rank: int
    num_ranks: int
    kind: str
    number: int
    payload_bytes: int
    took_s: float


def is_inspected(path: Path) -> bool:
    """Return whether a file, or a file in a folder, was written by the plugin."""
    if not path.exists() or (path / "record.json").exists():
        return False
    for file in _files([path]):
        try:
            with opened(file) as handle:
                first = handle.read(_FIRST)
        except OSError:
            continue
        if any(mark in first for mark in _MARKS):
            return True
    return False


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]


def read(paths: Sequence[Path]) -> Inspected:
    """Read all files, one or several for each rank. Raise ScaleproofError without a collective."""
    records: list[_RankCollective] = []
    dropped = 0
    for path in _files(paths):
        of_file, lost = _of_file(path)
        records += of_file
        dropped += lost
    by_number: dict[tuple[str, str, int], dict[int, _RankCollective]] = defaultdict(dict)
    for record in records:
        by_number[record.communicator, record.kind, record.number][record.rank] = record
    whole = [
        of for of in by_number.values() if len(of) == next(iter(of.values())).num_ranks > 1
    ]  # fmt: skip
    if not whole:
        raise ScaleproofError(
            "no collective was recorded by all of its ranks",
            where=str(paths[0]),
            expected="the files of NCCL Inspector of all ranks",
            fix=f"ls {paths[0]}",
        )
    waits_s: dict[int, float] = defaultdict(float)
    for of in whole:
        shortest_s = min(record.took_s for record in of.values())
        for rank, record in of.items():
            waits_s[rank] += record.took_s - shortest_s
    return Inspected(
        num_ranks=max(record.num_ranks for record in records),
        kinds=tuple(_of_kind(kind, whole) for kind in sorted(_kinds(whole))),
        waits_s=dict(sorted(waits_s.items())),
        incomplete=len(by_number) - len(whole),
        dropped=max(dropped, _missing(records)),
    )


def _kinds(whole: Sequence[Mapping[int, _RankCollective]]) -> set[str]:
    return {next(iter(of.values())).kind for of in whole}


def _of_kind(kind: str, whole: Sequence[Mapping[int, _RankCollective]]) -> InspectedKind:
    mine = [list(of.values()) for of in whole if next(iter(of.values())).kind == kind]
    shortest_s = [min(record.took_s for record in of) for of in mine]
    waits_s = [
        sum(record.took_s - least for record in of) / len(of)
        for of, least in zip(mine, shortest_s, strict=True)
    ]
    return InspectedKind(
        kind=kind,
        count=len(mine),
        payload_bytes=sum(max(record.payload_bytes for record in of) for of in mine),
        transfer_s=sum(shortest_s),
        wait_s=sum(waits_s),
    )


def _missing(records: Sequence[_RankCollective]) -> int:
    """Return how many numbers are missing between the first and the last of each rank."""
    numbers: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for record in records:
        numbers[record.communicator, record.kind, record.rank].add(record.number)
    return sum(max(seen) - min(seen) + 1 - len(seen) for seen in numbers.values())


def _of_file(path: Path) -> tuple[list[_RankCollective], int]:
    """Return the records of a file, and the number that the plugin reports as lost.

    Since format 5 only a marker line has the header, which holds for the lines after it.
    """
    records: list[_RankCollective] = []
    lost: dict[str, int] = {}
    header: dict[str, Any] = {}
    with opened(path) as handle:
        for line in handle:
            document = _document(line)
            header = document["header"] if isinstance(document.get("header"), dict) else header
            if "rank" in document:
                header = document  # the older format has no header of its own
            stats = document.get("dump_stats")
            if isinstance(stats, dict):
                totals = [int(v) for k, v in stats.items() if k.endswith("_dropped_total")]
                lost[str(header.get("id"))] = sum(totals)
            done = document.get("coll_perf")
            if isinstance(done, dict) and "coll_exec_time_us" in done and "rank" in header:
                records.append(_record(header, done))
    return records, sum(lost.values())


def _document(line: bytes) -> dict[str, Any]:
    """Return the object of a line, or an empty one if the line was cut."""
    try:
        document: Json = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _record(header: Mapping[str, Any], done: Mapping[str, Any]) -> _RankCollective:
    return _RankCollective(
        communicator=str(header.get("id")),
        rank=int(header["rank"]),
        num_ranks=int(header.get("n_ranks", 0)),
        kind=str(done.get("coll")),
        number=int(done.get("coll_sn", 0)),
        payload_bytes=int(done.get("coll_msg_size_bytes", 0)),
        took_s=float(done["coll_exec_time_us"]) / 1e6,
    )
