"""Which kernels a term of the budget consists of, and which operators launched them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.intervals import covered
from harness.analysis.timeline.nesting import innermost
from harness.analysis.timeline.reader import Trace
from harness.analysis.timeline.views.window import CALLS, DEVICE, ShownBudget
from harness.record import Term

#: Terms in which a device is at work.
BUSY = (Term.COMPUTE, Term.MOVE, Term.TRANSFER, Term.WAIT, Term.BUBBLE, Term.UNDIVIDED)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernels of one name that one operator launched: ns and number in a mean step of a mean rank.

    ``ns`` are the instants of the term during which it ran. Kernels that run at once count the same
    instant each, so they may add up to more than the term. ``by`` is empty where nothing is known.
    """

    term: Term
    name: str
    by: str
    ns: int
    count: float


def kernels(window: ShownBudget, most: int = 4) -> tuple[Kernel, ...]:
    """The longest of every term, in the order of the terms; none for a trace of a host."""
    spent: Counter[tuple[Term, str, str]] = Counter()
    count: Counter[tuple[Term, str, str]] = Counter()
    for trace, _, terms in window.parts():
        rows = np.flatnonzero(trace.of_cat(*DEVICE))
        launchers = launched_by(trace, rows)
        for term in BUSY:
            instants = terms.get(term)
            if instants is None or not len(instants):
                continue
            inside = covered(instants, trace.end[rows]) - covered(instants, trace.start[rows])
            for at in np.flatnonzero(inside).tolist():
                launcher = trace.names[trace.name[launchers[at]]] if launchers[at] >= 0 else ""
                key = (term, trace.names[trace.name[rows[at]]], launcher)
                spent[key] += int(inside[at])
                count[key] += 1
    share = window.rank_steps
    busy = [
        Kernel(term=t, name=n, by=launcher, ns=ns // share, count=count[t, n, launcher] / share)
        for (t, n, launcher), ns in spent.items()
    ]
    return tuple(
        k
        for term in BUSY
        for k in _longest([kernel for kernel in busy if kernel.term is term], most)
    )


def _longest(some: Sequence[Kernel], most: int) -> list[Kernel]:
    return sorted(some, key=lambda kernel: (-kernel.ns, kernel.name, kernel.by))[:most]


def launched_by(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row of a device the innermost operator around the call that launched it, or -1."""
    calls = np.flatnonzero(trace.of_cat(*CALLS) & (trace.correlation >= 0))
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    launcher = np.full(len(rows), -1, dtype=np.int64)
    if not len(calls) or not len(rows):
        return launcher
    wanted = trace.correlation[rows]
    at = np.minimum(np.searchsorted(trace.correlation[calls], wanted), len(calls) - 1)
    call = np.where(trace.correlation[calls[at]] == wanted, calls[at], -1)
    operators = np.flatnonzero(trace.of_cat("cpu_op"))
    for thread in np.unique(trace.thread[call[call >= 0]]).tolist():
        launched = np.flatnonzero((call >= 0) & (trace.thread[call] == thread))
        launcher[launched] = innermost(trace, operators, thread, trace.start[call[launched]])
    return launcher
