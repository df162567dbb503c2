"""Reads torch.profiler's Chrome traces: streaming, typed, into columns of int64 nanoseconds.

A trace is cut into blocks of whole events, and each block is decoded by msgspec into the few fields
that are used. What msgspec refuses (ids of odd types, broken text) goes through the standard
library, event by event; what even that cannot read is counted, never passed over in silence.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import ScaleproofError

BLOCK_BYTES = 2 << 20
#: Python frames and graph nodes: up to nine tenths of a trace with stacks, none of it timed here.
DROPPED = frozenset({"python_function", "Trace", "fwdbwd", "async_cpu_to_gpu", "ac2g"})
_START = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|dur|id)"\s*:)')
_INT64 = (1 << 63) - 1
_COLUMNS = ("start", "end", "name", "cat", "thread", "correlation", "stream")


class Args(msgspec.Struct, gc=False, rename={
    "correlation": "correlation", "stream": "stream",
    "collective": "Collective name", "nelems": "In msg nelems",
    "group": "Process Group Name", "ranks": "Process Group Ranks", "size": "Group size",
    "seq": "Seq",
    "source": "Src Rank", "target": "Dst Rank", "dims": "Input Dims",
    "inputs": "Concrete Inputs", "allocated": "Total Allocated",
}):  # fmt: skip
    """What an event may carry beside its times; everything optional."""

    correlation: int = -1
    stream: int = -1
    collective: str = ""
    nelems: int = -1
    group: str = ""
    ranks: str = ""
    size: int = -1
    seq: int = -1
    source: int = -1
    target: int = -1
    dims: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    allocated: int = -1


class Event(msgspec.Struct, gc=False):
    """One event as written; ``ts`` and ``dur`` in us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's events, ascending by start: columns of equal length, names and kinds as indices.

    ``meta`` holds the trace's own header and tail, ``rank`` and ``world_size`` what it says of
    itself (-1 without). ``extra`` maps an event's row to its arguments where it has any that
    matter: collectives, sends and their operands. ``partial`` says what could not be read.
    ``allocated`` are (ns, bytes) of allocations, where memory was profiled.
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
    correlation: NDArray[np.int64]
    stream: NDArray[np.int32]
    names: tuple[str, ...]
    cats: tuple[str, ...]
    threads: tuple[str, ...]
    extra: dict[int, Args]
    allocated: NDArray[np.int64]
    partial: str = ""

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
            f"{len(ids)} processes and their devices are in one file",
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
        self[key] = found = len(self)
        return found


_get = {n: attrgetter(n) for n in ("ts", "dur", "name", "cat", "pid", "tid", "args")}


@dataclass
class _Growing:
    """Grows block by block: one list of pieces for each column, in the order of ``_COLUMNS``.

    Times are ns since the trace's own base; a thread is its process's number and its own.
    """

    names: _Ids = field(default_factory=_Ids)
    cats: _Ids = field(default_factory=_Ids)
    processes: _Ids = field(default_factory=_Ids)
    threads: _Ids = field(default_factory=_Ids)
    pieces: list[list[NDArray[Any]]] = field(default_factory=lambda: [[] for _ in _COLUMNS])
    extra: dict[int, Args] = field(default_factory=dict)
    allocated: list[tuple[float, int]] = field(default_factory=list)
    rows: int = 0

    def add(self, events: list[Event]) -> None:
        """One block's complete events."""
        kept = [e for e in events if e.ph == "X" and e.cat not in DROPPED]
        n = len(kept)
        if n < len(events):
            self.allocated += [
                (e.ts, e.args.allocated)
                for e in events
                if e.ph == "i" and e.args is not None and e.args.allocated >= 0
            ]
        if not n:
            return
        args = list(map(_get["args"], kept))
        names = np.fromiter(map(self.names.__getitem__, map(_get["name"], kept)), np.int32, n)
        talking = [i for i, name in enumerate(self.names) if name.startswith(("c10d::", "gloo:"))]
        rows = np.flatnonzero(np.isin(names, talking)).tolist() if talking else []
        rows += [i for i, a in enumerate(args) if a is not None and a.collective]
        for i in rows:
            if (found := args[i]) is not None:
                self.extra[self.rows + i] = found
        ts = np.fromiter(map(_get["ts"], kept), np.float64, n)
        ends = ts + np.fromiter(map(_get["dur"], kept), np.float64, n)
        processes = np.fromiter(
            map(self.processes.__getitem__, map(_get["pid"], kept)), np.int32, n
        )
        threads = np.fromiter(map(self.threads.__getitem__, map(_get["tid"], kept)), np.int32, n)
        columns: tuple[NDArray[Any], ...] = (
            np.round(ts * 1000).astype(np.int64),
            np.round(ends * 1000).astype(np.int64),
            names,
            np.fromiter(map(self.cats.__getitem__, map(_get["cat"], kept)), np.int16, n),
            (processes << 16) + threads,
            _correlations(args),
            np.array([-1 if a is None else a.stream for a in args], dtype=np.int32),
        )
        for pieces, column in zip(self.pieces, columns, strict=True):
            pieces.append(column)
        self.rows += n

    def whole(self, column: str) -> NDArray[Any]:
        """A column, its pieces freed: a large trace is never held twice."""
        pieces = self.pieces[_COLUMNS.index(column)]
        found = np.concatenate(pieces)
        pieces.clear()
        return found


def _correlations(args: list[Args | None]) -> NDArray[np.int64]:
    """What ties a kernel to its launch; -1 for none. Some write unsigned ones."""
    found = [-1 if a is None else a.correlation for a in args]
    try:
        return np.array(found, dtype=np.int64)
    except OverflowError:
        return np.array([min(c, _INT64) for c in found], dtype=np.int64)


def read(path: Path) -> Trace:
    """Read one trace, plain or gzipped; ScaleproofError if it is none."""
    columns, skipped = _Growing(), 0
    decode = msgspec.json.Decoder(list[Event]).decode
    stream = _Stream(path)
    enabled = gc.isenabled()
    gc.disable()  # else half of the time goes into looking for cycles that cannot be there
    try:
        for block in stream.blocks():
            try:
                events = decode(block)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                events, lost = _salvage(block)
                skipped += lost
            columns.add(events)
            del events
    finally:
        if enabled:
            gc.enable()
    if not columns.rows:
        raise ScaleproofError(
            "no timed events in this file" + (f": {stream.broken}" if stream.broken else ""),
            where=str(path),
            expected="a Chrome trace of torch.profiler, .json or .json.gz",
            fix="export_chrome_trace('rank0.json.gz'), then scaleproof timeline rank0.json.gz",
        )
    broken = [stream.broken] if stream.broken else []
    if skipped:
        broken.append(f"{skipped} events could not be read")
    return _trace(path, columns, stream.meta, "; ".join(broken))


def _trace(path: Path, columns: _Growing, meta: dict[str, Any], partial: str) -> Trace:
    base = int(meta.get("baseTimeNanoseconds", 0))
    start, end = columns.whole("start"), columns.whole("end")
    order = np.lexsort((-end, start))  # of two that start together, the one around comes first
    start, end = start[order] + base, end[order] + base
    moved = {}
    if columns.extra:
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        moved = {int(place[row]): a for row, a in columns.extra.items()}
    thread = columns.whole("thread")[order]
    ids = np.unique(thread)
    processes, threads = tuple(columns.processes), tuple(columns.threads)
    info = meta.get("distributedInfo") or {}
    allocated = [(round(t * 1000) + base, b) for t, b in columns.allocated]
    return Trace(
        path=str(path),
        meta=meta,
        rank=int(info.get("rank", -1)),
        world_size=int(info.get("world_size", -1)),
        start=start,
        end=end,
        name=columns.whole("name")[order],
        cat=columns.whole("cat")[order],
        thread=np.searchsorted(ids, thread).astype(np.int32),
        correlation=columns.whole("correlation")[order],
        stream=columns.whole("stream")[order],
        names=tuple(columns.names),
        cats=tuple(columns.cats),
        threads=tuple(f"{processes[i >> 16]}/{threads[i & 0xFFFF]}" for i in ids.tolist()),
        extra=moved,
        allocated=np.array(sorted(allocated), dtype=np.int64).reshape(-1, 2),
        partial=partial,
    )


class _Stream:
    """Cuts a trace file into blocks of whole events; ``meta`` is complete once they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, Any] = {}
        self.broken = ""

    def blocks(self) -> Iterator[bytes]:
        """JSON lists of events."""
        try:
            with self.path.open("rb") as handle:
                yield from self._cut(self._chunks(handle))
        except OSError as error:
            raise ScaleproofError(
                f"cannot be read: {error.strerror or error}",
                where=str(self.path),
                fix="scaleproof timeline rank*.json.gz",
            ) from None

    def _chunks(self, handle: IO[bytes]) -> Iterator[bytes]:
        """The file's text, decompressed if it is gzipped; as much of a broken one as there is."""
        magic = handle.read(2)
        handle.seek(0)
        if magic != b"\x1f\x8b":
            while chunk := handle.read(BLOCK_BYTES):
                yield chunk
            return
        member, inside = zlib.decompressobj(wbits=31), False
        while chunk := handle.read(max(1, BLOCK_BYTES // 8)):
            while chunk:
                try:
                    text = member.decompress(chunk)
                except zlib.error as error:
                    self.broken = f"the compressed file is damaged ({error})"
                    return
                inside, chunk = not member.eof, member.unused_data
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
            rest += more
            # The last border in sight; the event after it may not be whole yet.
            cut = None
            for found in _NEXT.finditer(rest, max(0, len(rest) - (1 << 16))):
                cut = found
            if cut is None:
                for found in _NEXT.finditer(rest):
                    cut = found
            if cut is not None:
                yield b"[" + rest[: cut.start() + 1] + b"]"
                rest = rest[cut.end() :]
        yield from self._last(rest)

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """What is left at the end: the last events and the tail, or a broken end."""
        close = rest.rfind(b"]")
        while close >= 0:
            tail = rest[close + 1 :].strip()
            with contextlib.suppress(ValueError):
                text = b"{" + tail.removeprefix(b",").removesuffix(b"}") + b"}"
                self.meta.update(json.loads(text))
                if not rest[:close].rstrip().endswith((b"}", b"[", b",")) and rest[:close].strip():
                    raise ValueError
                yield b"[" + rest[:close].rstrip().removesuffix(b",") + b"]"
                return
            close = rest.rfind(b"]", 0, close)
        self.broken = self.broken or "the file ends in the middle of its events"
        cut = None
        for found in _NEXT.finditer(rest):
            cut = found
        if cut is not None:
            yield b"[" + rest[: cut.start() + 1] + b"]"

    def _header(self, text: bytes) -> None:
        with contextlib.suppress(ValueError):
            body = text.rstrip().removesuffix(b",") + b"}"
            self.meta.update(json.loads(body.decode("utf-8", "replace"), strict=False))


_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.S)


def _salvage(block: bytes) -> tuple[list[Event], int]:
    """The readable events of a block that is not clean, and how many were not."""
    out: list[Event] = []
    lost = 0
    begin = 1
    borders = [m.start() + 1 for m in _NEXT.finditer(block)]
    for end in [*borders, len(block) - 1]:
        text = block[begin:end].decode("utf-8", "replace").strip().lstrip(",").strip()
        begin = end
        if not text:
            continue
        event = _event(text)
        if event is None:
            lost += 1
        else:
            out.append(event)
    return out, lost


def _event(text: str) -> Event | None:
    """One event, its name's unescaped quotes put right; None if that does not help."""
    for attempt in (text, _NAME.sub(_quoted, text)):
        with contextlib.suppress(ValueError):
            doc = json.loads(attempt, strict=False)
            args = doc.get("args")
            clean = {k: doc.get(k) for k in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
            found = msgspec.convert(
                {k: v for k, v in clean.items() if v is not None}, Event, strict=False
            )
            if isinstance(args, dict):
                found.args = _args(args)
            return found
    return None


def _quoted(match: re.Match[str]) -> str:
    return match[1] + re.sub(r'(?<!\\)"', r"\"", match[2]) + match[3]


def _args(doc: dict[str, Any]) -> Args:
    """Whatever of the arguments has a type that can be used."""
    usable: dict[str, Any] = {}
    for info in msgspec.structs.fields(Args):
        value = doc.get(info.encode_name)
        if info.type is msgspec.Raw and value is not None:
            usable[info.name] = msgspec.Raw(json.dumps(value).encode())
        elif info.type is int:
            with contextlib.suppress(TypeError, ValueError):
                usable[info.name] = min(int(value), _INT64)  # type: ignore[arg-type]
        elif info.type is str and isinstance(value, str):
            usable[info.name] = value
    return Args(**usable)
