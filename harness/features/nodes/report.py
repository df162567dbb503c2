"""The report on pairs of nodes, and on the slow nodes and links."""

from collections.abc import Sequence
from statistics import median

from harness.base.formatting import si
from harness.features.nodes import pairing
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record.fabric import Paired, Suspects

#: Number of pairs that are shown, the slowest first.
SHOWN = 6


def lines(suspects: Suspects, width: int) -> list[str]:
    """Return the lines of the report.

    It shows the slowest pairs, each slow node and link with its evidence, and the number of
    launches.
    """
    timed = [pair for pair in suspects.pairs if pair.time_s is not None]
    if not timed:
        return [" no pair of nodes completed its measurement"]
    usual = {
        r: median(pair.time_s or 0.0 for pair in timed if pair.round == r) for r in _rounds(timed)
    }

    def over(p: Paired) -> float:
        return (p.time_s or 0.0) / usual[p.round] - 1

    columns = [
        Column[Paired]("round", 5, lambda p: str(p.round + 1)),
        Column("pair", 30, lambda p: f"{p.a} - {p.b}", left=True),
        Column("step" if suspects.case else "all-reduce", 8, lambda p: si(p.time_s or 0.0, "s")),
        Column("over usual", 8, lambda p: f"{over(p):+.1%}"),
    ]
    if not suspects.case:
        columns.append(Column("bus", 8, lambda p: "n/a" if p.bps is None else si(p.bps, "B/s")))
    rows = sorted(timed, key=lambda pair: -over(pair))[:SHOWN]
    what = suspects.case or "all-reduce"
    shown = [rule(f"pairs: {what}", width), *Table(columns=columns, rows=rows).lines(width)]
    if len(timed) > SHOWN:
        shown.append(f" ... and {len(timed) - SHOWN} pairs that were faster")
    for slow in suspects.slow:
        kind = "NODE" if len(slow.hosts) == 1 else "LINK"
        shown += wrap(f" {kind}  {pairing.words(slow)}; odds {_odds(slow.log_evidence)}", width, 7)
    if suspects.undecided:
        shown += wrap(f" OPEN  {pairing.open_still(suspects)}", width, 7)
    elif not suspects.slow:
        nothing = (
            f" no node and no link is {pairing.least(suspects.case):.0%} slower than the others"
        )
        shown += wrap(f"{nothing}; {pairing.hidden(suspects)}", width, 1)
    failed = len(suspects.pairs) - len(timed)
    broke = f", {failed} of them failed" if failed else ""
    shown.append(
        f" {len(suspects.pairs)} pairs{broke} in {len(_rounds(suspects.pairs))} rounds,"
        f" {2 * len(suspects.pairs)} node-launches"
    )
    return shown


def _rounds(pairs: Sequence[Paired]) -> list[int]:
    """Return the numbers of the rounds of these pairs."""
    return sorted({pair.round for pair in pairs})


def _odds(log_evidence: float) -> str:
    """Return odds like ``4,000 : 1``. Odds of a million and more are shown as a power of ten."""
    power = log_evidence / 2.302585
    return f"10^{power:.0f} : 1" if power >= 6 else f"{10**power:,.0f} : 1"
