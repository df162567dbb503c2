"""Reads torch.profiler's Chrome traces: streaming, typed, into columns of int64 nanoseconds.

file -> blocks of whole events -> events -> columns, ascending by start
"""

import contextlib
import gc
import re
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.blocks import Blocks
from harness.analysis.timeline.events import INT64, NO_ARGS, Args, Event, decode
from harness.base.errors import ScaleproofError

#: Python frames and graph nodes: up to nine tenths of a trace with stacks, none of it timed here.
DROPPED = frozenset({"python_function", "Trace", "fwdbwd", "async_cpu_to_gpu", "ac2g"})
#: Kinds of events that are understood, or are known to take no time of a device.
KNOWN = frozenset({
    "cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset",
    "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver", "cuda_sync",
    "cuda_event", "overhead", "cpu_instant_event", "external_correlation", "cuda_profiler_range",
    "gpu_pm_counter", "privateuse1_runtime", "privateuse1_driver", "", *DROPPED,
})  # fmt: skip
#: What kinds were called before 2022.
_RENAMED = {
    "Kernel": "kernel", "Operator": "cpu_op", "Runtime": "cuda_runtime", "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}  # fmt: skip
#: Kinds of devices that nobody has taught this reader.
_OTHER_DEVICES = re.compile(r"mtia|hpu|glow|collective_comm|privateuse")
#: Coarser timestamps than this are told, in us.
COARSE_US = 0.01
#: Later than any clock: float64 holds whole microseconds up to here.
LATEST_US = float(1 << 53)
_COLUMNS = ("start", "end", "name", "cat", "thread", "correlation", "stream")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's events, ascending by start: columns of equal length, names and kinds as indices.

    ``meta`` holds the trace's own header and tail, ``rank`` and ``world_size`` what it says of
    itself (-1 without). ``extra`` maps an event's row to its arguments where it has any that
    matter: collectives, sends and their operands. ``partial`` says what could not be read,
    ``notes`` what else one should know of it.
    ``allocated`` are (ns, bytes) of allocations, of a device if there are any, where memory was
    profiled.
    """

    path: str
    meta: dict[str, Any]
    rank: int
    world_size: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    cat: NDArray[np.int16]
    thread: NDArray[np.int32]
    correlation: NDArray[np.int32] | NDArray[np.int64]
    stream: NDArray[np.int32] | NDArray[np.int64]
    names: tuple[str, ...]
    cats: tuple[str, ...]
    threads: tuple[str, ...]
    extra: dict[int, Args]
    allocated: NDArray[np.int64]
    partial: str = ""
    notes: tuple[str, ...] = ()

    def of_cat(self, *cats: str) -> NDArray[np.bool_]:
        """Which rows are of one of these kinds."""
        wanted = [i for i, c in enumerate(self.cats) if c in cats]
        return np.isin(self.cat, wanted)

    def named(self, matches: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which rows have a name that matches from its beginning."""
        wanted = [i for i, n in enumerate(self.names) if matches.match(n)]
        return np.isin(self.name, wanted)


def split(trace: Trace) -> list[Trace]:
    """One trace for each process that makes steps: a file may hold all ranks of a world."""
    steps = trace.named(re.compile(r"ProfilerStep#\d+$")) & trace.of_cat("user_annotation")
    process = np.array([t.partition("/")[0] for t in trace.threads])[trace.thread]
    ids = sorted(set(process[steps].tolist()), key=lambda p: (len(p), p))
    if len(ids) < 2:
        return [trace]
    if not np.isin(process[trace.of_cat("kernel")], ids).all():
        raise ScaleproofError(
            f"the file holds {len(ids)} processes with their devices",
            where=trace.path,
            expected="one trace for each rank",
            fix="scaleproof timeline rank*.json.gz",
        )
    parts = []
    for rank, one in enumerate(ids):
        rows = np.flatnonzero(process == one)
        place = {int(row): i for i, row in enumerate(rows)}
        parts.append(
            replace(
                trace,
                rank=rank,
                world_size=len(ids),
                **{n: getattr(trace, n)[rows] for n in _COLUMNS},
                extra={place[r]: a for r, a in trace.extra.items() if r in place},
            )
        )
    return parts


class _Ids(dict[Any, int]):
    """Values numbered in the order they are first seen."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


_OF_EVENT = ("ts", "dur", "name", "cat", "pid", "tid", "args")
_OF_ARGS = ("collective", "stream", "correlation")
_get = {n: attrgetter(n) for n in (*_OF_EVENT, *_OF_ARGS)}


@dataclass
class _Growing:
    """Grows block by block: one list of pieces for each column, in the order of ``_COLUMNS``.

    Times are ns since the trace's own base; a thread is a pair, its process's name and its own.
    """

    names: _Ids = field(default_factory=_Ids)
    cats: _Ids = field(default_factory=_Ids)
    threads: _Ids = field(default_factory=_Ids)
    pieces: list[list[NDArray[Any]]] = field(default_factory=lambda: [[] for _ in _COLUMNS])
    extra: dict[int, Args] = field(default_factory=dict)
    allocated: list[tuple[float, int, int]] = field(default_factory=list)
    rows: int = 0
    coarsest_us: float = 0.0
    untimely: int = 0

    def add(self, events: list[Event]) -> None:
        kept = [e for e in events if e.ph == "X" and e.cat not in DROPPED]
        n = len(kept)
        if n < len(events):
            self.allocated += [
                (e.ts, e.args.allocated, e.args.device_type)
                for e in events
                if e.ph == "i" and e.args.allocated >= 0
            ]
        ts = np.fromiter(map(_get["ts"], kept), np.float64, n)
        dur = np.fromiter(map(_get["dur"], kept), np.float64, n)
        timely = (np.abs(ts) < LATEST_US) & (dur >= 0) & (dur < LATEST_US)
        if not timely.all():
            kept = [e for e, good in zip(kept, timely, strict=True) if good]
            ts, dur = ts[timely], dur[timely]
            self.untimely, n = self.untimely + n - len(kept), len(kept)
        if not n:
            return
        args: list[Args] = list(map(_get["args"], kept))
        names = np.fromiter(map(self.names.__getitem__, map(_get["name"], kept)), np.int32, n)
        talking = [i for i, name in enumerate(self.names) if name.startswith(("c10d::", "gloo:"))]
        rows = np.flatnonzero(np.isin(names, talking)).tolist() if talking else []
        rows += [i for i, c in enumerate(map(_get["collective"], args)) if c]
        for i in rows:
            if args[i] is not NO_ARGS:
                self.extra[self.rows + i] = args[i]
        start = _ns(ts)
        if (ts % 1).any():
            self.coarsest_us = max(self.coarsest_us, float(np.spacing(ts.max())))
        threads = zip(map(_get["pid"], kept), map(_get["tid"], kept), strict=True)
        columns: tuple[NDArray[Any], ...] = (
            start,
            start + _ns(dur),
            names,
            np.fromiter(map(self.cats.__getitem__, map(_get["cat"], kept)), np.int16, n),
            np.fromiter(map(self.threads.__getitem__, threads), np.int32, n),
            _integers(list(map(_get["correlation"], args))),
            _integers(list(map(_get["stream"], args))),
        )
        for pieces, column in zip(self.pieces, columns, strict=True):
            pieces.append(column)
        self.rows += n

    def whole(self, column: str) -> NDArray[Any]:
        """A column, its pieces freed: a large trace is never held twice."""
        pieces = self.pieces[_COLUMNS.index(column)]
        joined = np.concatenate(pieces)
        pieces.clear()
        return joined


def _ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Microseconds as whole nanoseconds: times of day in ns are larger than floats are exact."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.round((us - whole) * 1000).astype(np.int64)


def _integers(values: list[int]) -> NDArray[np.int32] | NDArray[np.int64]:
    """What ties a kernel to its launch, or its stream; -1 for none. Some have unsigned 64 bits."""
    with contextlib.suppress(OverflowError):
        return np.array(values, dtype=np.int32)
    with contextlib.suppress(OverflowError):
        return np.array(values, dtype=np.int64)
    return np.array([min(c, INT64) for c in values], dtype=np.int64)


def read(path: Path) -> Trace:
    """Read one trace, plain or gzipped; ScaleproofError if it is none."""
    columns, skipped, blocks = _Growing(), 0, Blocks(path)
    enabled = gc.isenabled()
    gc.disable()  # else half of the time goes into looking for cycles that cannot be there
    try:
        for block in blocks:
            events, lost = decode(block)
            columns.add(events)
            skipped += lost
            del events
    finally:
        if enabled:
            gc.enable()
    if not columns.rows:
        raise ScaleproofError(
            "no timed events in this file" + (f": {blocks.broken}" if blocks.broken else ""),
            where=str(path),
            expected="a Chrome trace of torch.profiler, .json or .json.gz",
            fix="export_chrome_trace('rank0.json.gz'), then scaleproof timeline rank0.json.gz",
        )
    broken = [blocks.broken] if blocks.broken else []
    if skipped:
        broken.append(f"{skipped} events could not be read")
    if columns.untimely:
        broken.append(f"{columns.untimely} events have times of no clock")
    notes = _unknown(path, columns)
    if columns.coarsest_us > COARSE_US:
        notes.append(f"its timestamps are {1000 * columns.coarsest_us:.0f} ns apart at least")
    return _trace(path, columns, blocks.meta, "; ".join(broken), tuple(notes))


def _unknown(path: Path, columns: _Growing) -> list[str]:
    """What is said of kinds that nobody knows; ScaleproofError where they are a device's."""
    cats, streams = np.concatenate(columns.pieces[3]), np.concatenate(columns.pieces[6])
    out = []
    for name, number in columns.cats.items():
        kind = _RENAMED.get(name, name)
        if kind in KNOWN:
            continue
        if _OTHER_DEVICES.search(kind) or (streams[cats == number] >= 0).any():
            raise ScaleproofError(
                f"device events of kind {kind!r} are not understood", where=str(path),
                expected="a trace of CPU, CUDA, ROCm or XPU",
                fix="report the kind as an issue, with a trace of a few steps",
            )  # fmt: skip
        out.append(f"events of kind {kind!r} are left out")
    return out


def _whole(told: object) -> int:
    """A number that a header states; -1 for anything else."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return int(told)  # type: ignore[call-overload,no-any-return]
    return -1


def _trace(
    path: Path, columns: _Growing, meta: dict[str, Any], partial: str, notes: tuple[str, ...]
) -> Trace:
    base = max(0, _whole(meta.get("baseTimeNanoseconds")))
    start, end = columns.whole("start"), columns.whole("end")
    np.negative(end, out=end)  # in place: here a large trace is at its largest
    order = np.lexsort((end, start))  # of two that start together, the one around comes first
    start = start[order]
    start += base
    end = end[order]
    np.subtract(base, end, out=end)
    moved = {}
    if columns.extra:
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        moved = {int(place[row]): a for row, a in columns.extra.items()}
    told = meta.get("distributedInfo")
    info = told if isinstance(told, dict) else {}
    on_device = any(kind > 0 for _, _, kind in columns.allocated)
    allocated = [
        (round(t * 1000) + base, size)
        for t, size, kind in columns.allocated
        if kind > 0 or not on_device
    ]
    return Trace(
        path=str(path),
        meta=meta,
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        start=start,
        end=end,
        name=columns.whole("name")[order],
        cat=columns.whole("cat")[order],
        thread=columns.whole("thread")[order],
        correlation=columns.whole("correlation")[order],
        stream=columns.whole("stream")[order],
        names=tuple(columns.names),
        cats=tuple(_RENAMED.get(c, c) for c in columns.cats),
        threads=tuple(f"{process}/{thread}" for process, thread in columns.threads),
        extra=moved,
        allocated=np.array(sorted(allocated), dtype=np.int64).reshape(-1, 2),
        partial=partial,
        notes=notes,
    )
