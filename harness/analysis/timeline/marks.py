"""Marks in the rows of a trace: steps, loading, our own spans."""

import fnmatch
import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.intervals import Intervals, union
from harness.analysis.timeline.reader import Trace
from harness.base.errors import ScaleproofError
from harness.record import Category
from harness.record.spans import category_of

STEP = re.compile(r"ProfilerStep#\d+$")
_DATA = re.compile(r"enumerate\(DataLoader\)#.*__next__")
#: Bytes of an element, by the names that torch writes for tensors and for collectives.
_ITEM_BYTES = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2,
    "short": 2, "short int": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1,
    "signed char": 1,
}  # fmt: skip


def item_bytes(dtype: str) -> int:
    """Bytes of an element of this type; -1 for an unknown one."""
    name = dtype.lower().removeprefix("c10::")
    return 1 if name.startswith("float8") else _ITEM_BYTES.get(name, -1)


def rows_of(trace: Trace, mask: NDArray[np.bool_]) -> Intervals:
    return union(trace.start[mask], trace.end[mask])


def host_steps(
    trace: Trace, step_name: str | None = None
) -> tuple[NDArray[np.int64], int, tuple[str, ...]]:
    """Edges of the steps on the host, the thread that makes them, and what had to be assumed.

    Of several threads that make steps the one that spends most time in them counts. Steps without
    a length are left out.
    """
    pattern = STEP if step_name is None else re.compile(fnmatch.translate(step_name))
    marked = trace.of_cat("user_annotation", "cpu_op") & trace.named(pattern)
    rows = np.flatnonzero(marked & (trace.end > trace.start))
    if len(rows):
        spent = np.bincount(trace.thread[rows], weights=trace.end[rows] - trace.start[rows])
        main = int(spent.argmax())
        of_main = rows[trace.thread[rows] == main]
        more = len(set(trace.thread[rows].tolist())) - 1
        edges = np.unique(np.append(trace.start[of_main], trace.end[of_main[-1]]))
        notes = [f"{more} more threads make steps: left out"] if more else []
        if step_name is None and (gone := _missing(trace, of_main)):
            notes.append(f"{gone} steps are missing between others: these are longer by that")
        return edges, main, tuple(notes)
    repeated = ", ".join(f"{name} ({times}x)" for name, times in _repeated(trace))
    if step_name is not None:
        raise ScaleproofError(
            f"no annotation is named {step_name!r}",
            where=trace.path,
            expected=f"one of those that repeat: {repeated or 'there are none'}",
            fix="scaleproof timeline PATH --ranges",
        )
    busiest = int(np.bincount(trace.thread).argmax())
    edges = np.array([trace.start.min(), trace.end.max()], dtype=np.int64)
    reason = "no ProfilerStep in the trace: the whole trace counts as one step"
    if repeated:
        reason += f"; --step-name takes an annotation that is one, of {repeated}"
    return edges, busiest, (reason,)


def _missing(trace: Trace, rows: NDArray[np.int64]) -> int:
    """How many numbers of the profiler's steps are left out between the first and the last."""
    numbers = {int(trace.names[n].partition("#")[2]) for n in trace.name[rows].tolist()}
    return max(numbers) - min(numbers) + 1 - len(numbers)


def _repeated(trace: Trace) -> list[tuple[str, int]]:
    """Annotations that repeat, those that cover most time first: one of them may be the step."""
    rows = np.flatnonzero(trace.of_cat("user_annotation"))
    count = np.bincount(trace.name[rows], minlength=len(trace.names))
    spent = np.bincount(trace.name[rows], weights=trace.end[rows] - trace.start[rows])
    longest = sorted(np.flatnonzero(count > 1).tolist(), key=lambda n: -spent[n])
    return [(trace.names[n], int(count[n])) for n in longest[:3]]


def marked(trace: Trace, *categories: Category) -> NDArray[np.bool_]:
    """Rows that are our own spans of these categories."""
    wanted = [i for i, name in enumerate(trace.names) if category_of(name) in categories]
    return np.isin(trace.name, wanted)


def data(trace: Trace) -> NDArray[np.bool_]:
    return trace.named(_DATA) | marked(trace, Category.DATA)
