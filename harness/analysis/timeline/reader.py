"""Read Chrome traces of torch.profiler as a stream, into columns of int64 nanoseconds."""

import contextlib
import gc
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import IO, Any, get_args
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.events import (
    BORDER,
    INT64,
    NO_ARGS,
    Args,
    Event,
    Found,
    Kind,
    MemoryEvents,
    Ties,
    arguments,
    decode,
)
from harness.base.errors import ScaleproofError
from harness.base.packs import opened

BLOCK_BYTES = 1 << 20
#: What is held back at the end of what was read: a trace's tail may look like events.
HELD_BYTES = 1 << 16
#: Longer than any event of a profiler; a file that claims one would be held whole.
EVENT_BYTES = 64 << 20
_START = re.compile(rb'"traceEvents"\s*:\s*\[\s*')


class Blocks:
    """A file's blocks. Once they are read, ``meta`` has the trace's header and tail, and ``broken``
    says what is wrong with the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, Any] = {}
        self.broken = ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with opened(self.path) as handle:
                yield from self._cut(self._chunks(handle))
        except (OSError, BadZipFile) as error:
            reason = getattr(error, "strerror", None) or error
            raise ScaleproofError(
                f"cannot be read: {reason}",
                where=str(self.path),
                fix="scaleproof report timeline rank*.json.gz",
            ) from None

    def _chunks(self, handle: IO[bytes]) -> Iterator[bytes]:
        """The file's text, decompressed if it is gzipped; as much of a broken one as there is."""
        magic = handle.read(2)
        handle.seek(0)
        if magic != b"\x1f\x8b":
            while chunk := handle.read(BLOCK_BYTES):
                yield chunk
            return
        member = zlib.decompressobj(wbits=31)
        inside = False
        while chunk := handle.read(max(1, BLOCK_BYTES // 8)):
            while chunk:
                try:
                    text = member.decompress(chunk, BLOCK_BYTES)  # zeros grow a thousandfold
                except zlib.error as error:
                    self.broken = f"the compressed file is damaged ({error})"
                    return
                inside = not member.eof
                chunk = member.unconsumed_tail or member.unused_data
                if member.eof:
                    member = zlib.decompressobj(wbits=31)
                if text:
                    yield text
        if inside:
            self.broken = "the compressed file is cut short"

    def _cut(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        rest = next(chunks, b"")
        start = _START.search(rest)
        while start is None and rest.lstrip()[:1] == b"{" and (more := next(chunks, b"")):
            rest += more
            start = _START.search(rest)
        if start is not None:
            self._header(rest[: start.start()])
            rest = rest[start.end() :]
        elif rest.lstrip()[:1] == b"[":  # the other form of the format: a bare list
            rest = rest.lstrip()[1:]
        else:
            return
        for more in chunks:
            border = _last_border(more)
            if border is None:  # a small chunk, or a large event
                if len(rest) > EVENT_BYTES:
                    self.broken = f"it has an event of more than {EVENT_BYTES >> 20} MB"
                    return
                rest, more = b"", rest + more
                border = _last_border(more)
            if border is not None:  # joined once: each copy costs as much as reading does
                yield b"".join((b"[", rest, memoryview(more)[: border.start() + 1], b"]"))
                more = more[border.end() :]
            rest = more
        yield from self._last(rest)

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """Reads the end of a file: the last events and the tail, or a broken end.

        The tail may hold lists of its own (the devices): the events end where both parts are whole,
        or else, as some event can be damaged, where they may end.
        """
        ends = [m.start() for m in re.finditer(rb"\]", rest)][::-1]
        for whole in (_is_whole, _may_end):
            for close in ends:
                events = rest[:close].rstrip().removesuffix(b",")
                tail = rest[close + 1 :].strip()
                if not whole(events):
                    continue
                with contextlib.suppress(ValueError):
                    text = b"{" + tail.removeprefix(b",").removesuffix(b"}") + b"}"
                    self.meta.update(json.loads(text))
                    yield b"[" + events + b"]"
                    return
        self.broken = self.broken or "the file ends in the middle of its events"
        cut = None
        for border in BORDER.finditer(rest):
            cut = border
        if cut is not None:
            yield b"[" + rest[: cut.start() + 1] + b"]"

    def _header(self, text: bytes) -> None:
        with contextlib.suppress(ValueError):
            body = text.rstrip().removesuffix(b",") + b"}"
            self.meta.update(json.loads(body.decode("utf-8", "replace"), strict=False))


def _last_border(chunk: bytes) -> re.Match[bytes] | None:
    """The last border in sight; the event after it may not be whole yet."""
    last = max(0, len(chunk) - HELD_BYTES)
    for sight in (HELD_BYTES // 16, HELD_BYTES, last):
        borders = list(BORDER.finditer(chunk, max(0, last - sight), last))
        if borders:
            return borders[-1]
    return None


def _is_whole(events: bytes) -> bool:
    """Whether these are events, separated by commas."""
    try:
        msgspec.json.decode(b"[" + events + b"]", type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _may_end(events: bytes) -> bool:
    return not events or events.endswith((b"}", b"["))


#: Kinds that are understood, or are known to take no time of a device.
KNOWN = frozenset(get_args(Kind))
#: What kinds were called before 2022.
_RENAMED = {
    "Kernel": "kernel", "Operator": "cpu_op", "Runtime": "cuda_runtime", "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}  # fmt: skip
#: Kinds of devices that nobody has taught this reader.
_OTHER_DEVICES = re.compile(r"mtia|hpu|glow|collective_comm|privateuse")
#: Coarser timestamps than this are told, in us.
COARSE_US = 0.01
#: Later than any clock: float64 holds whole microseconds, and a sum of both fits into int64 ns.
LATEST_US = float(1 << 52)
LATEST_BASE_NS = 1 << 62
#: Kinds of events that nothing on a device is tied to.
_BARE = frozenset({"cpu_op", "Operator", "user_annotation"})
_COLUMNS = ("start", "end", "name", "cat", "thread", "correlation", "stream")
_GROWN = {
    "start": np.int64,
    "end": np.int64,
    "name": np.int32,
    "place": np.int32,
    "correlation": np.int64,
    "stream": np.int64,
}
#: Names of what communicates: its arguments matter.
_TALKS = ("c10d::", "gloo:")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's events, ascending by start: columns of equal length, names and kinds as indices.

    ``meta`` holds the trace's own header and tail, ``rank`` and ``world_size`` what it says of
    itself (-1 without). ``extra`` maps an event's row to its arguments where it has any that
    matter: collectives, sends and their operands. ``partial`` says what could not be read,
    ``notes`` what else one should know of it.
    ``allocated`` are (ns, bytes) of allocations, of a device if there are any (``device_memory``),
    where memory was profiled.
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
    device_memory: bool = False
    partial: str = ""
    notes: tuple[str, ...] = ()

    def of_cat(self, *cats: str) -> NDArray[np.bool_]:
        """Which rows are of one of these kinds."""
        return np.array([c in cats for c in self.cats], dtype=bool)[self.cat]

    def named(self, matches: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which rows have a name that matches from its beginning."""
        return np.array([bool(matches.match(name)) for name in self.names], dtype=bool)[self.name]


def split(trace: Trace) -> list[Trace]:
    """One trace for each process that makes steps: a file may hold all ranks of a world."""
    steps = trace.named(re.compile(r"ProfilerStep#\d+$")) & trace.of_cat("user_annotation")
    process = np.array([thread.partition("/")[0] for thread in trace.threads])[trace.thread]
    ids = sorted(set(process[steps].tolist()), key=lambda p: (len(p), p))
    if len(ids) < 2:
        return [trace]
    if not np.isin(process[trace.of_cat("kernel")], ids).all():
        raise ScaleproofError(
            f"the file holds {len(ids)} processes with their devices",
            where=trace.path,
            expected="one trace for each rank",
            fix="scaleproof report timeline rank*.json.gz",
        )
    parts = []
    for rank, pid in enumerate(ids):
        rows = np.flatnonzero(process == pid)
        place = {int(row): i for i, row in enumerate(rows)}
        parts.append(
            replace(
                trace,
                rank=rank,
                world_size=len(ids),
                **{name: getattr(trace, name)[rows] for name in _COLUMNS},
                extra={place[r]: a for r, a in trace.extra.items() if r in place},
            )
        )
    return parts


class _Ids(dict[Any, int]):
    """Values numbered in the order they are first seen."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Names(_Ids):
    """Names, and which of them talk."""

    def __init__(self) -> None:
        super().__init__()
        self.talking: list[int] = []

    def __missing__(self, key: str) -> int:
        number = super().__missing__(key)
        if key.startswith(_TALKS):
            self.talking.append(number)
        return number


@dataclass
class _Growing:
    """Grows block by block, each column of ``_GROWN`` in place: pieces would leave holes behind.

    Times are ns since the trace's own base. A place is what many events have in common: their kind,
    their process and its thread.
    """

    names: _Names = field(default_factory=_Names)
    places: _Ids = field(default_factory=_Ids)
    grown: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in _GROWN}
    )
    extra: dict[int, Args] = field(default_factory=dict)
    allocated: list[NDArray[np.int64]] = field(default_factory=list)
    rows: int = 0
    coarsest_us: float = 0.0
    untimely: int = 0

    def add(self, parsed: Found) -> None:
        if instants := [instant for instant in parsed.instants if abs(instant.ts) < LATEST_US]:
            memory = arguments([instant.args for instant in instants], MemoryEvents)
            at = _ns(np.array([instant.ts for instant in instants]))
            sizes = _integers([m.allocated for m in memory])
            kinds = _integers([m.kind for m in memory])
            self.allocated.append(np.stack([at, sizes, kinds], axis=1)[sizes >= 0])
        events = parsed.timed
        n = len(parsed.timed)
        ts = np.fromiter([event.ts for event in events], np.float64, n)
        dur = np.fromiter([event.dur for event in events], np.float64, n)
        timely = (np.abs(ts) < LATEST_US) & (dur >= 0) & (dur < LATEST_US)
        if not timely.all():
            events = list(compress(events, timely))
            ts = ts[timely]
            dur = dur[timely]
            self.untimely = self.untimely + n - len(events)
            n = len(events)
        if not n:
            return
        names, places = self.names, self.places
        name = np.fromiter([names[event.name] for event in events], np.int32, n)
        place = np.fromiter(
            [places[event.cat, event.pid, event.tid] for event in events], np.int32, n
        )
        start = _ns(ts)
        if (ts != np.floor(ts)).any():
            self.coarsest_us = max(self.coarsest_us, float(np.spacing(ts.max())))
        end = start + _ns(dur)
        columns = (start, end, name, place, *self._ties(events, name, place))
        for grown, column in zip(self.grown.values(), columns, strict=True):
            grown.extend(column.data)
        self.rows += n

    def _ties(
        self, events: list[Event], name: NDArray[np.int32], place: NDArray[np.int32]
    ) -> Iterator[NDArray[Any]]:
        """Correlations and streams; the arguments of what communicates go to ``extra``.

        Only of events that may have some of these the arguments are read.
        """
        bare = np.array([cat in _BARE for cat, _, _ in self.places])
        rows = np.flatnonzero(~bare[place])
        ties = arguments([events[i].args for i in rows.tolist()], Ties)
        for values in ([t.correlation for t in ties], [max(t.stream, t.npu_stream) for t in ties]):
            column = np.full(len(events), -1, dtype=np.int64)
            column[rows] = _integers(values)
            yield column
        telling = np.flatnonzero(np.isin(name, self.names.talking)).tolist()
        telling = [i for i in telling if events[i].args is not NO_ARGS]
        telling += [i for i, t in zip(rows.tolist(), ties, strict=True) if t.collective]
        args = arguments([events[i].args for i in telling], Args)
        self.extra.update(zip((self.rows + i for i in telling), args, strict=True))

    def whole(self, column: str) -> NDArray[Any]:
        """A column, given away: a large trace is never held twice."""
        return np.frombuffer(self.grown.pop(column), dtype=_GROWN[column])


def _ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Microseconds as whole nanoseconds: times of day in ns are larger than floats are exact."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.round((us - whole) * 1000).astype(np.int64)


def _integers(values: list[int]) -> NDArray[np.int64]:
    """The numbers that tie a kernel to its launch, or its stream; -1 for none. Some have unsigned
    64 bits.
    """
    with contextlib.suppress(OverflowError):
        return np.array(values, dtype=np.int64)
    return np.array([min(c, INT64) for c in values], dtype=np.int64)


def _narrow(values: NDArray[np.int64]) -> NDArray[np.int32] | NDArray[np.int64]:
    """The values in 32 bits where that is enough."""
    return values.astype(np.int32) if values.max() < 1 << 31 and values.min() >= -1 else values


def read(path: Path) -> Trace:
    """Read one trace, plain or gzipped; ScaleproofError if it is none."""
    columns = _Growing()
    skipped = 0
    blocks = Blocks(path)
    enabled = gc.isenabled()
    gc.disable()  # else half of the time goes into looking for cycles that cannot be there
    try:
        for block in blocks:
            decoded = decode(block)
            columns.add(decoded)
            skipped += decoded.lost
            del decoded
    finally:
        if enabled:
            gc.enable()
    if not columns.rows:
        raise ScaleproofError(
            "no timed events in this file" + (f": {blocks.broken}" if blocks.broken else ""),
            where=str(path),
            expected="a Chrome trace of torch.profiler, .json or .json.gz",
            fix="export_chrome_trace('t.json.gz'), then scaleproof report timeline t.json.gz",
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
    """Names the kinds of events that nobody knows; ScaleproofError where they are a device's."""
    sentences = []
    for name in dict.fromkeys(category for category, _, _ in columns.places):
        kind = _RENAMED.get(name, name)
        if kind in KNOWN and kind:
            continue
        categories = [number for (cat, _, _), number in columns.places.items() if cat == name]
        rows = np.isin(np.frombuffer(columns.grown["place"], dtype=np.int32), categories)
        streams = np.frombuffer(columns.grown["stream"], dtype=np.int64)[rows]
        if _OTHER_DEVICES.search(kind) or (streams >= 0).any():
            what = f"of kind {kind!r}" if kind else "without a category (of an Ascend NPU?)"
            raise ScaleproofError(
                f"device events {what} are not understood",
                where=str(path),
                expected="a trace of CPU, CUDA, ROCm or XPU",
                fix="report the kind as an issue, with a trace of a few steps",
            )
        if not kind:
            continue
        sentences.append(f"events of kind {kind!r} are left out")
    return sentences


def _whole(value: object) -> int:
    """A number that a header states; -1 for anything else."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return int(value)  # type: ignore[call-overload,no-any-return]
    return -1


def _trace(
    path: Path, columns: _Growing, meta: dict[str, Any], partial: str, notes: tuple[str, ...]
) -> Trace:
    base = max(0, _whole(meta.get("baseTimeNanoseconds")))
    if base > LATEST_BASE_NS:
        raise ScaleproofError(
            f"baseTimeNanoseconds is {base}, which is no time",
            where=str(path),
            expected="nanoseconds since 1970",
            fix="correct the header, or remove the field",
        )
    start = columns.whole("start")
    end = columns.whole("end")
    np.negative(end, out=end)  # in place: here a large trace is at its largest
    order = np.lexsort((end, start))  # of two that start together, the one around comes first
    start = start[order]
    start += base
    end = end[order]
    np.subtract(base, end, out=end)
    moved = {}
    if columns.extra:
        rank_of = np.empty(len(order), dtype=np.int64)
        rank_of[order] = np.arange(len(order))
        moved = {int(rank_of[row]): args for row, args in columns.extra.items()}
    cats = _Ids()
    threads = _Ids()
    cat_of = np.array([cats[_RENAMED.get(c, c)] for c, _, _ in columns.places], dtype=np.int16)
    thread_of = np.array([threads[f"{p}/{t}"] for _, p, t in columns.places], dtype=np.int32)
    place = columns.whole("place")[order]
    stated = meta.get("distributedInfo")
    info = stated if isinstance(stated, dict) else {}
    allocated = np.concatenate([np.empty((0, 3), dtype=np.int64), *columns.allocated])
    device_memory = bool((allocated[:, 2] > 0).any())
    if device_memory:
        allocated = allocated[allocated[:, 2] > 0]
    allocated = allocated[np.lexsort((allocated[:, 1], allocated[:, 0]))]
    return Trace(
        path=str(path),
        meta=meta,
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        start=start,
        end=end,
        name=columns.whole("name")[order],
        cat=cat_of[place],
        thread=thread_of[place],
        correlation=_narrow(columns.whole("correlation")[order]),
        stream=_narrow(columns.whole("stream")[order]),
        names=tuple(columns.names),
        cats=tuple(cats),
        threads=tuple(threads),
        extra=moved,
        allocated=allocated[:, :2] + [base, 0],
        device_memory=device_memory,
        partial=partial,
        notes=notes,
    )
