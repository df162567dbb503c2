"""Write one Chrome trace of all ranks on one clock, with the terms of the budget above each rank.

The trace of a run holds every profiled case. Each case begins at time zero, so that the steps of
several cases can be compared side by side. The file opens in Perfetto (https://ui.perfetto.dev) and
in chrome://tracing.
"""

import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.analysis.timeline.close import ReconciledBudget
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import Trace
from harness.analysis.timeline.views import ShownBudget
from harness.base import files
from harness.base.documents import Json
from harness.record import Term

_COLORS = {
    Term.COMPUTE: "thread_state_running",
    Term.MOVE: "rail_load",
    Term.WAIT: "terrible",
    Term.BUBBLE: "bad",
    Term.TRANSFER: "thread_state_iowait",
    Term.UNDIVIDED: "thread_state_iowait",
    Term.DATA: "rail_animation",
    Term.LAUNCH: "rail_response",
    Term.IDLE: "grey",
    Term.OTHER: "generic_work",
}


#: Maps the name of a case to a function that reads its profiled steps. Only one case at a time is
#: in memory.
Windows = Mapping[str, Callable[[], ShownBudget]]


def write(path: Path, windows: Windows) -> None:
    """Write the merged trace of these cases, compressed with gzip."""
    with files.writing_to(path.parent), files.whole(path) as file:
        _pack(file, windows)


def packed(windows: Windows) -> bytes:
    """Return the merged trace as bytes. Equal input results in equal bytes."""
    buffer = io.BytesIO()
    _pack(buffer, windows)
    return buffer.getvalue()


def _pack(file: IO[bytes], windows: Windows) -> None:
    """Write the merged trace, in which each process is one rank of one case.

    The absolute time is recorded only if there is a single case. Several cases all begin at time
    zero.
    """
    numbers = itertools.count()
    several = len(windows) > 1
    comma = b""
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as out:
        for case, opened in windows.items():
            window = opened()
            base = _base(window)
            if not comma:
                zero_ns = 0 if several else base
                out.write(b'{"displayTimeUnit":"ms","baseTimeNanoseconds":%d,' % zero_ns)
                out.write(b'"traceEvents":[')
            for event in _window(f"{case}, " if several else "", window, base, numbers):
                out.write(comma + b"\n" + json.dumps(event, separators=(",", ":")).encode())
                comma = b","
        out.write(b"\n]}\n")


def _base(window: ShownBudget) -> int:
    """Return the time at which the trace of the first rank begins, in ns on the common clock."""
    offsets = window.closed.offsets_ns
    return min(
        int(trace.start[0]) + offsets.get(lane.rank, 0)
        for trace, lane in zip(window.traces, window.lanes, strict=True)
    )


def _window(about: str, window: ShownBudget, base: int, numbers: Iterator[int]) -> Iterator[Json]:
    """Yield all events of a window. ``about`` is the prefix of the process names."""
    for trace, lane in zip(window.traces, window.lanes, strict=True):
        number = next(numbers) if about else lane.rank
        yield from _events(trace, lane, window.closed, base, (number, f"{about}rank {lane.rank}"))
    yield from _counters(window.readings, base, f"{about}devices")


def _counters(readings: Sequence[Json], base: int, process: str) -> Iterator[Json]:
    """Yield readings of each device, such as clock rate and power, as counters."""
    for reading in readings:
        for name, value in reading.items():
            if name not in ("time_ns", "index", "name") and value is not None:
                yield {
                    "ph": "C",
                    "pid": process,
                    "tid": 0,
                    "name": f"GPU {reading['index']} {name}",
                    "ts": (reading["time_ns"] - base) / 1e3,
                    "args": {name: value},
                }


def _events(
    trace: Trace, lane: Lanes, closed: ReconciledBudget, base: int, process: tuple[int, str]
) -> Iterator[Json]:
    """Yield the events of one rank. ``process`` is the number and name that the rank gets."""
    number, name = process
    shift = closed.offsets_ns.get(lane.rank, 0) - base
    head = {"ph": "M", "pid": number, "ts": 0}
    yield {**head, "name": "process_name", "args": {"name": name}}
    yield {**head, "name": "process_sort_index", "args": {"sort_index": number}}
    yield {**head, "tid": 0, "name": "thread_name", "args": {"name": "budget"}}
    yield {**head, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": -1}}
    for i, thread in enumerate(trace.threads):
        yield {**head, "tid": i + 1, "name": "thread_name", "args": {"name": f"thread {thread}"}}
    for term, track in closed.tracks[lane.rank].items():
        for start, end in track.tolist():
            yield {
                "ph": "X",
                "pid": number,
                "tid": 0,
                "cat": "budget",
                "name": str(term),
                "ts": (start - base) / 1e3,
                "dur": (end - start) / 1e3,
                "cname": _COLORS[term],
            }
    rows = zip(
        trace.start.tolist(),
        trace.end.tolist(),
        trace.name.tolist(),
        trace.cat.tolist(),
        trace.thread.tolist(),
        strict=True,
    )
    for start, end, called, cat, thread in rows:
        yield {
            "ph": "X",
            "pid": number,
            "tid": thread + 1,
            "cat": trace.cats[cat],
            "name": trace.names[called],
            "ts": (start + shift) / 1e3,
            "dur": (end - start) / 1e3,
        }
    for when, size in trace.allocated.tolist():
        yield {
            "ph": "C",
            "pid": number,
            "tid": 0,
            "name": "allocated bytes",
            "ts": (when + shift) / 1e3,
            "args": {"bytes": size},
        }
