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
from harness.analysis.timeline.formats import format_of
from harness.base.errors import ScaleproofError
from harness.base.packs import opened

BLOCK_BYTES = 1 << 20
#: Number of bytes at the end of a block that are not yet split into events. They may belong to the
#: tail of the trace, which can look like events.
HELD_BYTES = 1 << 16
#: Largest size of an event in bytes; no profiler writes larger ones. Without this limit, a damaged
#: file without recognizable events would be read into memory as a whole.
EVENT_BYTES = 64 << 20
_START = re.compile(rb'"traceEvents"\s*:\s*\[\s*')


class Blocks:
    """The blocks of a trace file, each a JSON list of whole events.

    After iteration, ``meta`` holds the fields before and after the events (the header and the
    tail). ``broken`` then describes the damage of the file (empty if there is none).
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
        """Yield the text of the file, decompressed if necessary.

        If the file is damaged, yield the text before the damage.
        """
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
                    # The limit saves memory: a compressed block of zeros can grow a thousandfold.
                    text = member.decompress(chunk, BLOCK_BYTES)
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
        """Yield blocks that end between two events; read the header and the tail into ``meta``."""
        rest = next(chunks, b"")
        start = _START.search(rest)
        while start is None and rest.lstrip()[:1] == b"{" and (more := next(chunks, b"")):
            rest += more
            if len(rest) > EVENT_BYTES:
                self.broken = f"it has no events in its first {EVENT_BYTES >> 20} MB"
                return
            start = _START.search(rest)
        if start is not None:
            self._header(rest[: start.start()])
            rest = rest[start.end() :]
        elif rest.lstrip()[:1] == b"[":  # the format also allows a list without a header
            rest = rest.lstrip()[1:]
        else:
            return
        for more in chunks:
            border = _last_border(more)
            if border is None:  # the chunk is small, or the event is large
                if len(rest) > EVENT_BYTES:
                    self.broken = f"it has an event of more than {EVENT_BYTES >> 20} MB"
                    return
                rest, more = b"", rest + more
                border = _last_border(more)
            if border is not None:  # joined once, because a copy takes as long as reading the text
                yield b"".join((b"[", rest, memoryview(more)[: border.start() + 1], b"]"))
                more = more[border.end() :]
            rest = more
        yield from self._last(rest)

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """Yield the last events of a file, and read its tail or report a broken end.

        The tail may contain further lists, such as the devices. The events therefore end at the
        last closing bracket for which both the events and the tail are valid JSON. If an event is
        damaged, they end at the last closing bracket that can follow an event.
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
    """Return the last border between events that is certain, or None.

    The event after it may be incomplete.
    """
    last = max(0, len(chunk) - HELD_BYTES)
    for sight in (HELD_BYTES // 16, HELD_BYTES, last):
        borders = list(BORDER.finditer(chunk, max(0, last - sight), last))
        if borders:
            return borders[-1]
    return None


def _is_whole(events: bytes) -> bool:
    """Return whether this is a sequence of valid JSON values, separated by commas."""
    try:
        msgspec.json.decode(b"[" + events + b"]", type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _may_end(events: bytes) -> bool:
    """Return whether a list of events can end after this text."""
    return not events or events.endswith((b"}", b"["))


#: Kinds of events that the reader understands, or that never run on a device.
KNOWN = frozenset(get_args(Kind))
#: Names of kinds in traces before 2022, with the present names.
_RENAMED = {
    "Kernel": "kernel", "Operator": "cpu_op", "Runtime": "cuda_runtime", "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}  # fmt: skip
#: Kinds of events of devices that this reader does not support.
_OTHER_DEVICES = re.compile(r"mtia|hpu|glow|collective_comm|privateuse")
#: Resolution of timestamps in us; if it is coarser, a note says so.
COARSE_US = 0.01
#: Largest valid time in us; the times of real clocks are smaller. Up to this value, float64
#: represents whole microseconds exactly, and the sum with the trace's base time fits into int64 ns.
LATEST_US = float(1 << 52)
LATEST_BASE_NS = 1 << 62
#: Kinds of events whose arguments do not relate them to a device.
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
#: Prefixes of the names of communications, whose arguments are kept.
_TALKS = ("c10d::", "gloo:")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The events of one rank in columns of equal length, ascending by start time.

    Times are in ns. ``name``, ``cat`` and ``thread`` are indices into ``names``, ``cats`` and
    ``threads``. ``meta`` holds the fields of the file before and after its events. ``rank`` and
    ``world_size`` are -1 if the trace does not state them. ``extra`` maps a row to its arguments if
    they are needed, for example for collectives, sends and receives. ``partial`` describes events
    that could not be read, and ``notes`` hold further caveats. If memory was profiled,
    ``allocated`` holds pairs of a time (ns) and the allocated memory (bytes). ``device_memory``
    says whether this is the memory of a device. If the trace does not contain the memory of a
    device, it is the memory of the host.
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
        """Return a mask of the rows of these kinds."""
        return np.array([c in cats for c in self.cats], dtype=bool)[self.cat]

    def named(self, matches: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return a mask of the rows whose names match the pattern from their beginning."""
        return np.array([bool(matches.match(name)) for name in self.names], dtype=bool)[self.name]


def split(trace: Trace) -> list[Trace]:
    """Split a trace into one trace for each process that runs training steps.

    A file may contain all ranks as processes.
    """
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
    """A map from values to numbers, which are assigned in the order of the first look-ups."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Names(_Ids):
    """A map from names to numbers; ``talking`` lists the numbers of names of communications."""

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
    """The columns of a trace while it is read, block by block.

    Each column of ``_GROWN`` grows in place, because a list of pieces would fragment the memory.
    Times are in ns since the base time of the trace. A place is a triple of kind, process and
    thread, and is stored once for all its events.
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
        """Append the events of a block, except those with impossible times, which are counted."""
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
        """Yield the correlation ids, then the streams, and store needed arguments in ``extra``.

        Decoding arguments is slow. It is therefore limited to kinds of events that can have these
        fields.
        """
        bare = np.array([cat in _BARE for cat, _, _ in self.places])
        rows = np.flatnonzero(~bare[place])
        ties = arguments([events[i].args for i in rows.tolist()], Ties)
        streams = [max(t.stream, t.npu_stream if t.task else -1) for t in ties]
        for values in ([t.correlation for t in ties], streams):
            column = np.full(len(events), -1, dtype=np.int64)
            column[rows] = _integers(values)
            yield column
        telling = np.flatnonzero(np.isin(name, self.names.talking)).tolist()
        telling = [i for i in telling if events[i].args is not NO_ARGS]
        telling += [i for i, t in zip(rows.tolist(), ties, strict=True) if t.collective]
        args = arguments([events[i].args for i in telling], Args)
        self.extra.update(zip((self.rows + i for i in telling), args, strict=True))

    def whole(self, column: str) -> NDArray[Any]:
        """Return a column and release it, because a large trace must not be in memory twice."""
        return np.frombuffer(self.grown.pop(column), dtype=_GROWN[column])


def _ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return microseconds as whole nanoseconds.

    Whole and fractional microseconds are converted separately, because float64 cannot represent a
    time of day in ns exactly.
    """
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.round((us - whole) * 1000).astype(np.int64)


def _integers(values: list[int]) -> NDArray[np.int64]:
    """Return the values as int64, limited to the largest int64.

    Some profilers write correlation ids and streams as unsigned 64-bit integers.
    """
    with contextlib.suppress(OverflowError):
        return np.array(values, dtype=np.int64)
    return np.array([min(c, INT64) for c in values], dtype=np.int64)


def _narrow(values: NDArray[np.int64]) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return the values as int32 if they fit, otherwise unchanged."""
    return values.astype(np.int32) if values.max() < 1 << 31 and values.min() >= -1 else values


def read(path: Path) -> Trace:
    """Read one trace, plain or gzipped. Raise ScaleproofError if the file is no trace."""
    columns = _Growing()
    skipped = 0
    blocks = Blocks(path)
    enabled = gc.isenabled()
    gc.disable()  # it would take half of the time to search for cycles, which cannot exist here
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
        if (known := format_of(path)) is not None:
            raise ScaleproofError(
                f"this is {known.name}",
                where=str(path),
                expected="a Chrome trace of torch.profiler, .json or .json.gz",
                fix=known.fix.format(path=path),
            )
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
        broken.append(f"{columns.untimely} events have impossible times")
    notes = _unknown(path, columns)
    if columns.coarsest_us > COARSE_US:
        notes.append(f"its timestamps have a resolution of {1000 * columns.coarsest_us:.0f} ns")
    return _trace(path, columns, blocks.meta, "; ".join(broken), tuple(notes))


#: The note on a trace of torch_npu.
ASCEND = "its device is an Ascend NPU, whose rows are those with a task type"


def _unknown(path: Path, columns: _Growing) -> list[str]:
    """Return a note for each unknown kind of event.

    Raise ScaleproofError if events of such a kind ran on a device.
    """
    sentences = []
    for name in dict.fromkeys(category for category, _, _ in columns.places):
        kind = _RENAMED.get(name, name)
        if kind in KNOWN and kind:
            continue
        categories = [number for (cat, _, _), number in columns.places.items() if cat == name]
        rows = np.isin(np.frombuffer(columns.grown["place"], dtype=np.int32), categories)
        streams = np.frombuffer(columns.grown["stream"], dtype=np.int64)[rows]
        if not kind and (streams >= 0).any():
            sentences.append(ASCEND)
        elif _OTHER_DEVICES.search(kind) or (streams >= 0).any():
            raise ScaleproofError(
                f"device events of kind {kind!r} are not understood",
                where=str(path),
                expected="a trace of CPU, CUDA, ROCm or XPU",
                fix="report the kind as an issue, with a trace of a few steps",
            )
        if not kind:
            continue
        sentences.append(f"events of kind {kind!r} are left out")
    return sentences


def _whole(value: object) -> int:
    """Return a value of the header as an integer, or -1 if it is not a number."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return int(value)  # type: ignore[call-overload,no-any-return]
    return -1


def _trace(
    path: Path, columns: _Growing, meta: dict[str, Any], partial: str, notes: tuple[str, ...]
) -> Trace:
    """Return the trace of the columns, sorted by start, with its base time added."""
    base = max(0, _whole(meta.get("baseTimeNanoseconds")))
    if base > LATEST_BASE_NS:
        raise ScaleproofError(
            f"baseTimeNanoseconds is {base}, which is not a valid time",
            where=str(path),
            expected="nanoseconds since 1970",
            fix="correct the header, or remove the field",
        )
    start = columns.whole("start")
    end = columns.whole("end")
    np.negative(end, out=end)  # in place, because the memory of a large trace peaks here
    # if two events start together, the longer one, which encloses the other, comes first
    order = np.lexsort((end, start))
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
    place = columns.whole("place")[order]
    stream = columns.whole("stream")[order]
    on_device = frozenset(place[stream >= 0].tolist())  # torch_npu gives its rows no category
    cat_of = np.array(
        [
            cats["kernel" if not c and number in on_device else _RENAMED.get(c, c)]
            for (c, _, _), number in columns.places.items()
        ],
        dtype=np.int16,
    )
    thread_of = np.array([threads[f"{p}/{t}"] for _, p, t in columns.places], dtype=np.int32)
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
        stream=_narrow(stream),
        names=tuple(columns.names),
        cats=tuple(cats),
        threads=tuple(threads),
        extra=moved,
        allocated=allocated[:, :2] + [base, 0],
        device_memory=device_memory,
        partial=partial,
        notes=notes,
    )
