"""Write small traces in the formats of profilers, for tests of the reader and of the budget."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000


def event(
    name: str,
    start: int,
    end: int,
    cat: str = "cpu_op",
    tid: int | str = 1,
    pid: int | str = 1,
    **args: Any,
) -> dict[str, Any]:
    """Return one complete event from ``start`` to ``end`` ns."""
    mapping: dict[str, Any] = {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
        "ts": start / 1000, "dur": (end - start) / 1000,
    }  # fmt: skip
    return {**mapping, "args": args} if args else mapping


def step(k: int, start: int, end: int, tid: int | str = 1) -> dict[str, Any]:
    """Return a step of the profiler."""
    return event(f"ProfilerStep#{k}", start, end, "user_annotation", tid)


def write(
    path: Path,
    events: Sequence[dict[str, Any]],
    *,
    rank: int = -1,
    world_size: int = -1,
    layout: str = "kineto",
) -> Path:
    """Write a trace in one of the layouts in use: kineto, older kineto, compact, or a bare list."""
    head: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS}
    if rank >= 0:
        head["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world_size}
    if layout == "list":
        text = json.dumps(list(events))
    elif layout == "compact":
        text = json.dumps({**head, "traceEvents": list(events)}, separators=(",", ":"))
    elif layout == "older":  # The header's fields come last, and each event has its own line.
        lines = ",\n".join("  " + json.dumps(e) for e in events)
        tail = json.dumps(head)[1:-1]
        text = '{\n"traceEvents": [\n' + lines + "\n],\n" + tail + "\n}"
    else:
        blocks = [json.dumps(e, indent=2).replace("\n", "\n  ") for e in events]
        first = json.dumps(head, indent=2)[:-2]
        body = ",\n  ".join(blocks)
        text = f'{first},\n  "traceEvents": [\n  {body}\n  ],"traceName": "x.json"\n}}'
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path
