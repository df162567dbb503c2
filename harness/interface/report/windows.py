"""Print profiled windows: the step of every rank and the parts of it."""

from collections.abc import Callable, Sequence
from functools import partial

from harness.analysis.timeline import kernel_names
from harness.analysis.timeline.inspector import Inspected, InspectedKind
from harness.analysis.timeline.tallies import Range
from harness.analysis.timeline.views import Communication, Idleness, Kernel, TermChange
from harness.base.formatting import si
from harness.interface.report import text
from harness.interface.report.text import Column, rule, table, wrap
from harness.interface.report.timeline import STARRED, TERMS, head
from harness.record import Blame, Budget, RankBudget, Term

#: Meaning of a column of a window.
MEANINGS = {
    "ms/step": "mean step",
    "compute": "operators or kernels",
    "copies": "copies between host and device",
    "transfer": "communication",
    "wait": "collectives until the last rank arrives",
    "bubble": "send or recv until the peer arrives",
    "comm": "communication, waits included",
    "data": "loading of batches",
    "launch": "launch calls",
    "idle": "Python and other host work",
    "queued": "idle device with a queue",
    "all comm": "communication, the part hidden behind compute included",
}
#: Width of the interval of the wait, as a share of the step, from which on it is shown.
SEEN = 0.01


def window_lines(title: str, budget: Budget, width: int) -> list[str]:
    """Return the lines of one profiled window: the mean step of every rank, and its findings."""
    shown = [term for term in TERMS if budget.total_ns(term)]
    steps = f"{budget.steps} step{'s' if budget.steps > 1 else ''}"
    clocks = "" if not budget.clock_ns else f", clocks within {budget.clock_ns / 1e6:.2f} ms"
    num = len(budget.ranks)
    ranks = f"{num} rank{'s' if num > 1 else ''}"
    mean = f"{steps} of {budget.step_ns / 1e6:.2f} ms"
    lines = wrap(f" {title}: {ranks}, {mean}, {budget.device}{clocks}", width, 1)
    shares = {"all comm": budget.comm_share} | {
        head(term): budget.mean_ns(term) / budget.step_ns for term in shown
    }

    def share(name: str, rank: Callable[[RankBudget], float]) -> Column[RankBudget | None]:
        """Return a column with ms per step for each rank and the share of all ranks in the last
        row.
        """
        return Column(
            name,
            70 if name == "all comm" else 80,
            lambda r: f"{shares[name]:.1%}" if r is None else f"{rank(r) / 1e6:.2f}",
        )

    steps_ns = budget.steps
    columns = [
        Column[RankBudget | None]("rank", 100, lambda r: "all" if r is None else str(r.rank)),
        Column("ms/step", 99, lambda r: f"{sum(r.step_ns) / steps_ns / 1e6:.2f}" if r else ""),
        *(share(head(term), partial(_mean_ns, term=term)) for term in shown),
        share("all comm", lambda r: sum(r.comm_ns) / steps_ns),
    ]
    lines += table(columns, [*budget.ranks, None], width)
    if num > 1:
        lines += wrap(
            f" pop      load balance {budget.load_balance:.3f} x communication efficiency"
            f" {budget.communication_efficiency:.3f} = parallel efficiency"
            f" {budget.load_balance * budget.communication_efficiency:.3f}",
            width,
            10,
        )
    if (ends := budget.wait_ns) is not None and ends[1] - ends[0] > SEEN * budget.step_ns:
        low, high = (f"{end / budget.step_ns:.1%}" for end in ends)
        both = budget.mean_ns(Term.WAIT, Term.TRANSFER)
        rest = [f"{(both - end) / budget.step_ns:.1%}" for end in reversed(ends)]
        lines += wrap(
            f" between  the clocks and durations allow a wait of {low} to {high} of the step, and a"
            f" transfer of {rest[0]} to {rest[1]}",
            width,
            10,
        )
    if (b := budget.blame) is not None:
        lines += wrap(f" waited   {_waiting(b)}", width, 10)
    if budget.operators:
        top = ", ".join(
            f"{kernel_names.short(operator.name)} {operator.self_ns / 1e6:.2f} ms"
            for operator in budget.operators[:4]
        )
        lines += wrap(f" longest  {top}", width, 10)
    for reason in budget.unsure:
        lines += wrap(f" unsure   {reason}", width, 10)
    return lines


def legend_lines(shown: Sequence[str], width: int) -> list[str]:
    """Return the explanations of the columns and labels that occur in the lines of windows."""
    header = "  ".join(line for line in shown if line.startswith(" rank  "))
    notes = [text.legend(MEANINGS, header)]
    notes += [STARRED] if "*" in header else []
    if any(line.startswith(" pop ") for line in shown):
        notes.append("pop = efficiencies as the POP methodology defines them")
    return wrap(f" {'; '.join(filter(None, notes))}", width, 1)


def _waiting(b: Blame) -> str:
    """Return how long ranks wait in a step, and for which rank."""
    gross = f"{b.gross_ns / 1e6:.2f} ms a step"
    net = f"{b.net_ns / 1e6:.2f} ms net"
    longer = f": its {b.term} is {b.excess_ns / 1e6:.2f} ms longer than the others'"
    busy = longer if b.term else ""
    if not b.gross_ns:  # Old records have no gross waiting time.
        return f"{b.waited_ns / 1e6:.2f} ms a step net, for rank {b.rank}{busy}"
    if b.in_turn:
        return f"{gross}: ranks wait for each other in turn; {net} for rank {b.rank}"
    return f"{gross}; {b.share:.0%} of it for rank {b.rank}, {net}{busy}"


def _mean_ns(r: RankBudget, term: Term) -> float:
    return r.mean_ns(term)


def kernel_lines(kernels: Sequence[Kernel], width: int) -> list[str]:
    """Return the kernels in each term of a device's time."""
    if not kernels:
        return [" these traces contain no GPU, so there are no kernels"]
    columns = [
        Column[Kernel]("term", 100, lambda k: TERMS[k.term], left=True),
        Column("ms/step", 99, lambda k: f"{k.ns / 1e6:.3f}"),
        Column("count", 90, lambda k: f"{k.count:.3g}"),
        Column("launched by", 95, lambda k: k.by or "?", left=True),
        Column("kernel", 98, lambda k: _short(k.name, max(34, width - 64)), left=True),
    ]
    return [rule("kernels of each term", width), *table(columns, kernels, width)]


def idleness_lines(causes: Sequence[Idleness], width: int) -> list[str]:
    """Return what the host did while its device waited."""
    if not causes:
        return []
    columns = [
        Column[Idleness]("term", 100, lambda i: TERMS[i.term], left=True),
        Column("ms/step", 99, lambda i: f"{i.ns / 1e6:.3f}"),
        Column("the host", 98, lambda i: i.cause, left=True, prose=True),
        Column("in", 97, lambda i: _short(i.where, 34), left=True),
    ]
    return [rule("while the device waited", width), *table(columns, causes, width)]


def communication_lines(every: Sequence[Communication], width: int) -> list[str]:
    """Return each communication with its shortest duration, its waiting time and its last rank."""
    if not every:
        return [" no communication in these traces could be matched between ranks"]
    columns = [
        Column[Communication]("communication", 100, lambda c: c.kind, left=True),
        Column("ranks", 92, lambda c: str(len(c.ranks))),
        Column("size", 95, lambda c: _bytes(c.bytes)),
        Column("a step", 93, lambda c: f"{c.count:.3g}"),
        Column("shortest ms", 98, lambda c: f"{c.shortest_ns / 1e6:.3f}"),
        Column("waited ms", 99, lambda c: f"{c.waited_ns / 1e6:.3f}"),
        Column("last to come", 97, lambda c: f"rank {c.late} {c.late_share:.0%}"),
        Column("bus GB/s", 96, lambda c: "" if c.bus_bps is None else f"{c.bus_bps / 1e9:.3g}"),
    ]
    note = (
        " shortest = duration on the rank that waited least; waited = mean over ranks of the time"
        " until the last rank arrived; bus = rate of the busiest link while no rank waits"
    )
    return [rule("communications", width), *table(columns, every, width), *wrap(note, width, 1)]


def difference_lines(
    title: str, terms: Sequence[TermChange], names: Sequence[TermChange], width: int
) -> list[str]:
    """Return the difference of two windows' mean steps (B - A), and what changed most in them."""
    step = TermChange(
        name="step",
        before_ns=sum(change.before_ns for change in terms),
        after_ns=sum(change.after_ns for change in terms),
    )
    numbers = [
        Column[TermChange]("A ms", 98, lambda c: f"{c.before_ns / 1e6:.2f}"),
        Column[TermChange]("B ms", 98, lambda c: f"{c.after_ns / 1e6:.2f}"),
        Column[TermChange]("B - A", 99, lambda c: f"{c.more_ns / 1e6:+.2f}"),
    ]
    term = Column[TermChange]("term", 100, lambda c: TERMS.get(c.name, c.name), left=True)  # type: ignore[call-overload]
    shown = [rule(title, width), *table([term, *numbers], [*terms, step], width)]
    if names:
        name = Column[TermChange](
            "kernel or operator", 100, lambda c: _short(c.name, width - 36), left=True
        )
        shown += ["", *table([name, *numbers], names, width)]
    return shown


def _short(name: str, most: int) -> str:
    """Return a name of at most ``most`` characters; a shortened name ends in two dots."""
    name = kernel_names.short(name)
    return name if len(name) <= most else name[: most - 2] + ".."


def _bytes(size: int) -> str:
    if size < 0:
        return ""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} GB"


def range_lines(ranges: Sequence[Range], width: int) -> list[str]:
    """Return the table of the named ranges."""
    if not ranges:
        return [" no named ranges in these traces"]
    columns = [
        Column[Range]("range", 100, lambda r: r.name, left=True),
        Column("category", 90, lambda r: r.category, left=True),
        Column("count", 95, lambda r: str(r.count)),
        Column("total ms", 99, lambda r: f"{r.total_ns / 1e6:.2f}"),
        Column("mean ms", 80, lambda r: f"{r.mean_ns / 1e6:.3f}"),
        Column("longest ms", 70, lambda r: f"{r.longest_ns / 1e6:.3f}"),
    ]
    return table(columns, ranges, width)


def inspected_lines(job: Inspected, width: int) -> list[str]:
    """Return the lines of the collectives of a running job by kind, and each rank's waiting."""
    columns = [
        Column[InspectedKind](" collective", 100, lambda k: f" {k.kind}", left=True),
        Column[InspectedKind]("count", 95, lambda k: str(k.count)),
        Column[InspectedKind]("payload", 90, lambda k: si(float(k.payload_bytes), "B")),
        Column[InspectedKind]("transfer", 98, lambda k: si(k.transfer_s, "s")),
        Column[InspectedKind]("wait (mean rank)", 98, lambda k: si(k.wait_s, "s")),
    ]
    least = min(job.waits_s, key=lambda rank: job.waits_s[rank])
    waited = ", ".join(f"rank {rank} {si(wait, 's')}" for rank, wait in job.waits_s.items())
    late = f"rank {least} waits least, so the others wait for it"
    lines = [
        f" NCCL Inspector: {job.num_ranks} ranks",
        *table(columns, list(job.kinds), width),
        *wrap(f" waited   {waited}; {late}", width, 10),
    ]
    if job.dropped or job.incomplete:
        lines += wrap(
            f" unsure   {job.dropped} records were lost by the plugin, and {job.incomplete}"
            " collectives are left out because not all ranks recorded them",
            width,
            10,
        )
    return lines
