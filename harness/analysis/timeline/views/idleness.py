"""The host's activity while its device had nothing to do."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import marks
from harness.analysis.timeline.intervals import Intervals, covered
from harness.analysis.timeline.nesting import innermost
from harness.analysis.timeline.reader import Trace
from harness.analysis.timeline.views.window import CALLS, ShownBudget
from harness.record import Term

#: Terms in which a device waits for its host.
LAZY = (Term.IDLE, Term.LAUNCH, Term.OTHER)
#: What calls of a driver do, by their names; the first that is found counts.
_DOES = (
    ("waits for the device", re.compile(r"Synchronize|EventQuery|StreamQuery|WaitEvent")),
    ("copies, and may wait", re.compile(r"Memcpy|Memset")),
    (
        "allocates memory",
        re.compile(r"Malloc|Free|HostAlloc|HostRegister|Mem(Create|Map|Pool)"),
    ),
    ("launches", re.compile(r"Launch")),
    ("loads code", re.compile(r"Module|Library|GetFunction|FuncGet|FuncSet")),
)
PYTHON = "Python, between operators"


@dataclass(frozen=True, kw_only=True)
class Idleness:
    """One cause: ns in a mean step of a mean rank, in what call or operator of the host."""

    term: Term
    cause: str
    where: str
    ns: int


def idleness(window: ShownBudget, most: int = 4) -> tuple[Idleness, ...]:
    """The longest causes of every term; none for a trace of a host, whose holes are Python's."""
    spent: Counter[tuple[Term, str, str]] = Counter()
    for trace, lane, terms in window.parts():
        if lane.device == "cpu":
            continue
        for term in LAZY:
            if len(instants := terms.get(term, ())):
                spent += _of_rank(trace, term, np.asarray(instants))
    idle = [
        Idleness(term=t, cause=cause, where=where, ns=ns // window.rank_steps)
        for (t, cause, where), ns in spent.items()
    ]
    idle.sort(key=lambda i: (-i.ns, i.cause, i.where))
    return tuple(i for t in LAZY for i in [i for i in idle if i.term is t and i.ns][:most])


def _of_rank(trace: Trace, term: Term, instants: Intervals) -> Counter[tuple[Term, str, str]]:
    """Every instant goes to the call, or else the operator, that a training thread is in then."""
    rows = np.flatnonzero(trace.of_cat("cpu_op", *CALLS))
    is_call = trace.of_cat(*CALLS)
    edges = np.unique(np.concatenate([trace.start[rows], trace.end[rows], instants.ravel()]))
    spans = np.diff(covered(instants, edges))
    starts = edges[:-1][spans > 0]
    spans = spans[spans > 0]
    doing = np.full(len(starts), -1, dtype=np.int64)
    for thread in _threads(trace):
        holding = innermost(trace, rows, thread, starts)
        later = holding >= 0
        later[later] = (doing[later] < 0) | (
            trace.start[holding[later]] > trace.start[doing[later]]
        )
        doing[later] = holding[later]
    spent: Counter[tuple[Term, str, str]] = Counter()
    for row in np.unique(doing).tolist():
        ns = int(spans[doing == row].sum())
        if row < 0:
            spent[term, PYTHON, ""] += ns
            continue
        name = trace.names[trace.name[row]]
        cause = _cause(name) if is_call[row] else "an operator works on the host"
        spent[term, cause, name] += ns
    return spent


def _threads(trace: Trace) -> list[int]:
    """Threads that talk to the device, and the one that makes the steps."""
    _, main, _ = marks.host_steps(trace)
    calling: NDArray[np.int32] = np.unique(trace.thread[trace.of_cat(*CALLS)])
    return sorted({main, *calling.tolist()})


def _cause(call: str) -> str:
    return next((does for does, name in _DOES if name.search(call)), "calls the driver")
