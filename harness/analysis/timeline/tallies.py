"""Totals by name: the self times of operators, and the durations of named ranges."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.lanes import Lanes, self_ns
from harness.analysis.timeline.reader import Trace
from harness.record import Operator
from harness.record.spans import category_of


@dataclass(frozen=True, kw_only=True)
class Range:
    """The totals of all ranges with one name, over all ranks; times are in ns."""

    name: str
    category: str
    count: int
    total_ns: int
    mean_ns: float
    longest_ns: int


def operators(
    traces: Sequence[Trace], ranks: Sequence[Lanes], steps: int, most: int | None = 8
) -> tuple[Operator, ...]:
    """Return the operators with the largest self time in the steps, longest first.

    They are kernels if the rank used a device, and host operators otherwise. ``ranks`` are the
    lanes of ``traces``. Times and counts are averages over steps and ranks.
    """
    totals: dict[str, list[int]] = {}
    for trace, lane in zip(traces, ranks, strict=True):
        mask = trace.of_cat("kernel", "gpu_memcpy", "gpu_memset")
        if mask.any():
            spent = trace.end - trace.start
        else:
            mask = trace.of_cat("cpu_op")
            spent = self_ns(trace, mask)
        mask &= (trace.start >= lane.edges[0]) & (trace.start < lane.edges[steps])
        mask &= ~np.isin(
            trace.name, [i for i, n in enumerate(trace.names) if category_of(n) is not None]
        )
        for name in np.unique(trace.name[mask]).tolist():
            rows = mask & (trace.name == name)
            entry = totals.setdefault(trace.names[name], [0, 0])
            entry[0] += int(spent[rows].sum())
            entry[1] += int(rows.sum())
    share = len(traces) * steps
    tallied = [
        Operator(name=n, self_ns=ns // share, count=-(-count // share))
        for n, (ns, count) in totals.items()
    ]
    return tuple(sorted(tallied, key=lambda operator: (-operator.self_ns, operator.name))[:most])


def ranges(traces: Sequence[Trace]) -> list[Range]:
    """Return the totals of all named ranges (spans and annotations of any tool), longest first."""
    by_name: dict[str, list[NDArray[np.int64]]] = {}
    for trace in traces:
        ours = [i for i, n in enumerate(trace.names) if category_of(n) is not None]
        mask = trace.of_cat("user_annotation") | np.isin(trace.name, ours)
        # A range on the device counts only if its range on the host has not been counted.
        alone = ~np.isin(trace.name, np.unique(trace.name[mask]))
        mask |= trace.of_cat("gpu_user_annotation") & alone
        for name in np.unique(trace.name[mask]).tolist():
            rows = mask & (trace.name == name)
            by_name.setdefault(_plain(trace.names[name]), []).append(
                (trace.end - trace.start)[rows]
            )
    tallied = []
    for name, parts in by_name.items():
        spans = np.concatenate(parts)
        kind = category_of(name)
        tallied.append(
            Range(
                name=name if kind is None else name.split(".", 2)[2],
                category="" if kind is None else str(kind),
                count=len(spans),
                total_ns=int(spans.sum()),
                mean_ns=float(spans.mean()),
                longest_ns=int(spans.max()),
            )
        )
    return sorted(tallied, key=lambda r: (-r.total_ns, r.name))


def _plain(name: str) -> str:
    """Return the name of a range without the step number of the profiler."""
    return name.partition("#")[0] if name.startswith("ProfilerStep#") else name
