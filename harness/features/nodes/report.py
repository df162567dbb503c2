"""The report section on pairs of nodes, and on the slow nodes and links."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from markupsafe import Markup

from harness.base.documents import Json, to_doc
from harness.base.formatting import si
from harness.features.nodes import pairing
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import RunRecord
from harness.record.fabric import Paired, Suspects

SECTION = dict(title="Pairs of nodes", anchor="pairs", after="fabric", place=4)
#: Number of pairs that a terminal shows, the slowest first.
SHOWN = 6


def lines(run: RunRecord, width: int) -> list[str]:
    """Return the lines of ``of_pairs``, or nothing if the run measured no pairs of nodes."""
    return [] if run.suspects is None else [*of_pairs(run.suspects, width), ""]


def html(run: RunRecord) -> Markup:
    """Return a table of all pairs, and the conclusions from them."""
    if run.suspects is None:
        return Markup("")
    conclusions = [*_conclusions(run.suspects), _number(run.suspects)]
    sentences = Markup("").join(Markup("<div>{}</div>").format(text) for text in conclusions)
    return tabled(run.suspects).html("pairs of nodes") + sentences


def data(run: RunRecord) -> Mapping[str, Json]:
    """Return every pair, and the slow nodes and links."""
    return {"suspects": to_doc(run.suspects)}


def of_pairs(suspects: Suspects, width: int) -> list[str]:
    """Return the slowest pairs, each slow node and link with its evidence, and the launches."""
    table = tabled(suspects)
    few = Table(columns=table.columns, rows=table.rows[:SHOWN])
    shown = [rule(f"pairs: {suspects.case or 'all-reduce'}", width)]
    shown += few.lines(width) if few.rows else []
    if len(table.rows) > SHOWN:
        shown.append(f" ... and {len(table.rows) - SHOWN} pairs that were faster")
    for text in _conclusions(suspects):
        shown += wrap(f" {text}", width, 7 if text[0].isupper() else 1)
    return [*shown, f" {_number(suspects)}"]


def tabled(suspects: Suspects) -> Table[Paired]:
    """Return a table of the pairs that were timed, the slowest first."""
    timed = [pair for pair in suspects.pairs if pair.time_s is not None]
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
    return Table(columns=columns, rows=sorted(timed, key=lambda pair: -over(pair)))


def _conclusions(suspects: Suspects) -> Iterator[str]:
    """Yield a sentence for each slow node and link, and for what is still open."""
    if all(pair.time_s is None for pair in suspects.pairs):
        yield "no pair of nodes completed its measurement"
        return
    for slow in suspects.slow:
        kind = "NODE" if len(slow.hosts) == 1 else "LINK"
        yield f"{kind}  {pairing.words(slow)}; odds {_odds(slow.log_evidence)}"
    if suspects.undecided:
        yield f"OPEN  {pairing.open_still(suspects)}"
    elif not suspects.slow:
        least = f"{pairing.least(suspects.case):.0%}"
        yield f"no node and no link is {least} slower than the others; {pairing.hidden(suspects)}"


def _number(suspects: Suspects) -> str:
    """Return the number of pairs, of rounds and of launches."""
    failed = sum(pair.time_s is None for pair in suspects.pairs)
    return (
        f"{len(suspects.pairs)} pairs{f', {failed} of them failed' if failed else ''}"
        f" in {len(_rounds(suspects.pairs))} rounds, {2 * len(suspects.pairs)} node-launches"
    )


def _rounds(pairs: Sequence[Paired]) -> list[int]:
    """Return the numbers of the rounds of these pairs."""
    return sorted({pair.round for pair in pairs})


def _odds(log_evidence: float) -> str:
    """Return odds like ``4,000 : 1``. Odds of a million and more are shown as a power of ten."""
    power = log_evidence / 2.302585
    return f"10^{power:.0f} : 1" if power >= 6 else f"{10**power:,.0f} : 1"
