"""One Chrome trace of all ranks on one clock, the budget's terms as a track above each rank's.

Opens in Perfetto (https://ui.perfetto.dev) and in chrome://tracing.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.analysis.timeline.close import Closed
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import Trace
from harness.analysis.timeline.views.window import ShownBudget
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


def write(path: Path, window: ShownBudget) -> None:
    """Write the merged trace, gzipped."""
    traces, ranks, closed = window.traces, window.lanes, window.closed
    starts = [
        int(t.start[0]) + closed.offsets_ns.get(r.rank, 0)
        for t, r in zip(traces, ranks, strict=True)
    ]
    base = min(starts)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with gzip.open(temporary, "wt", compresslevel=6) as stream:
        stream.write('{"displayTimeUnit":"ms","baseTimeNanoseconds":' + str(base))
        stream.write(',"traceEvents":[\n')
        first = True
        for trace, lane in zip(traces, ranks, strict=True):
            for event in _events(trace, lane, closed, base):
                stream.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))
                first = False
        for event in _counters(window.readings, base):
            stream.write(",\n" + json.dumps(event, separators=(",", ":")))
        stream.write("\n]}\n")
    temporary.replace(path)


def _counters(readings: Sequence[Json], base: int) -> Iterator[Json]:
    """Clock, power and the like of each device, as counters beside the ranks."""
    for reading in readings:
        for name, value in reading.items():
            if name not in ("time_ns", "index", "name") and value is not None:
                yield {
                    "ph": "C",
                    "pid": "devices",
                    "tid": 0,
                    "name": f"GPU {reading['index']} {name}",
                    "ts": (reading["time_ns"] - base) / 1e3,
                    "args": {name: value},
                }


def _events(trace: Trace, lane: Lanes, closed: Closed, base: int) -> Iterator[Json]:
    rank, shift = lane.rank, closed.offsets_ns.get(lane.rank, 0) - base
    head = {"ph": "M", "pid": rank, "ts": 0}
    yield {**head, "name": "process_name", "args": {"name": f"rank {rank}"}}
    yield {**head, "name": "process_sort_index", "args": {"sort_index": rank}}
    yield {**head, "tid": 0, "name": "thread_name", "args": {"name": "budget"}}
    yield {**head, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": -1}}
    for i, thread in enumerate(trace.threads):
        yield {**head, "tid": i + 1, "name": "thread_name", "args": {"name": f"thread {thread}"}}
    for term, track in closed.tracks[rank].items():
        for start, end in track.tolist():
            yield {
                "ph": "X",
                "pid": rank,
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
    for start, end, name, cat, thread in rows:
        yield {
            "ph": "X",
            "pid": rank,
            "tid": thread + 1,
            "cat": trace.cats[cat],
            "name": trace.names[name],
            "ts": (start + shift) / 1e3,
            "dur": (end - start) / 1e3,
        }
    for when, size in trace.allocated.tolist():
        yield {
            "ph": "C",
            "pid": rank,
            "tid": 0,
            "name": "allocated bytes",
            "ts": (when + shift) / 1e3,
            "args": {"bytes": size},
        }
