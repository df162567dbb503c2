"""Compare compressors with dense training: their costs, and the link rate below which each wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from harness.analysis.choices import compressors
from harness.analysis.choices.compressors import DENSE, EncodingCost, Pays, TunedLoss
from harness.base.formatting import si
from harness.cases import Plan
from harness.interface.report.page.svg import Curve
from harness.interface.report.tabled import Table, TitledTable
from harness.interface.report.text import Column
from harness.record import RunRecord

#: Link rates in bit/s for which the tables show step times.
RATES = (100e6, 1e9, 10e9)
#: The end of the name of a plan that searches the best learning rate of each compressor.
TUNED = " codecs, tuned"
#: Link rates in Gbit/s on the x axis of the chart.
DRAWN_GBPS = (0.1, 0.316, 1.0, 3.16, 10.0)
#: The largest number of compressors in the chart besides dense training. More lines would be hard
#: to tell apart.
MOST_DRAWN = 5
#: A compressor learned less if its loss is above this multiple of the loss of dense training.
WORSE = 1.05


def compared(plan: Plan) -> bool:
    """Return whether a plan compares dense training with compressors only.

    Arms that do not communicate may be in the plan, too.
    """
    first, *others = plan.arms
    coded = [arm for arm in others if arm.case.compressor]
    apart = [arm for arm in others if not arm.case.communicate]
    return first.name == DENSE and bool(coded) and len(coded) + len(apart) == len(others)


def columns(
    costs: Sequence[EncodingCost], here: float, rates: Sequence[float] = RATES
) -> Iterator[Column[EncodingCost]]:
    """Yield the columns of a compressor's row that follow its measured metrics."""
    alternatives = dict.fromkeys(other for cost in costs for other in cost.pays)
    yield Column(
        "B/param", 70, lambda c: f"{c.bytes_per_parameter:.3g}", raw=lambda c: c.bytes_per_parameter
    )
    yield Column("encode", 65, lambda c: si(c.encode_s, "s") if c.encode_s is not None else "")
    yield Column("decode", 64, lambda c: si(c.decode_s, "s") if c.decode_s is not None else "")
    for rate in rates:
        yield Column(_rate(rate), 85, _at(rate, here), raw=_raw_at(rate, here))
    yield Column("wins below", 94, lambda c: _told(c.pays.get(DENSE)), raw=_raw)
    yield Column("from .. to", 40, lambda c: _ends(c.pays.get(DENSE)))
    for other in alternatives:
        if other != DENSE:
            yield Column(f"of {other}", 60, _beside(other))
    yield Column(
        "loss", 91, lambda c: f"{c.loss:.3f}" if c.loss is not None else "", raw=lambda c: c.loss
    )


def _raw(c: EncodingCost) -> float | None:
    dense = c.pays.get(DENSE)
    return None if dense is None else min(dense.rate, 1e15)


def _beside(other: str) -> Callable[[EncodingCost], str]:
    return lambda cost: _told(cost.pays.get(other))


def _at(rate: float, here: float) -> Callable[[EncodingCost], str]:
    return lambda cost: si(cost.at(rate, here), "s")


def _raw_at(rate: float, here: float) -> Callable[[EncodingCost], float]:
    return lambda cost: cost.at(rate, here)


def _rate(rate: float) -> str:
    """Return a rate in bit/s as a column header, such as ``100M`` or ``10G``."""
    return f"{rate / 1e9:g}G" if rate >= 1e9 else f"{rate / 1e6:g}M"


def _told(pays: Pays | None) -> str:
    if pays is None:
        return ""
    if pays.rate == 0:
        return "never"
    return "always" if math.isinf(pays.rate) else si(pays.rate, "bit/s")


def _ends(pays: Pays | None) -> str:
    if pays is None or pays.rate == 0:
        return ""
    high = "any" if math.isinf(pays.high) else si(pays.high, "bit/s")
    return f"{si(pays.low, 'bit/s')} .. {high}"


def notes(costs: Sequence[EncodingCost], here: float) -> list[str]:
    """Return notes that explain the columns and say which compressor to use over this link."""
    measured = "an unmeasured link" if math.isinf(here) else f"{si(here, 'bit/s')}"
    sentences = [
        f"measured over {measured}; a column named by a link rate has the step time at that rate",
        "wins below: the link rate below which a compressor is faster than dense training;"
        " column 'of X': faster than X",
    ]
    dense = next((cost for cost in costs if cost.name == DENSE), None)
    others = [cost for cost in costs if cost.pays]
    if dense is None or not others:
        return sentences
    worse = [other for other in others if learned_less(other, dense)]
    others = [other for other in others if other not in worse]
    if worse:
        names = ", ".join(cost.name for cost in worse)
        sentences.append(f"not recommended, because they learned less in as many steps: {names}")
    if not others:
        return sentences
    sentences.append(_here(others, dense, here))
    for rate in RATES:
        fastest = min([dense, *others], key=lambda cost: cost.at(rate, here))
        gain = dense.at(rate, here) / fastest.at(rate, here)
        wins = f"{fastest.name}, {gain:.2f}x of dense"
        sentences.append(f"at {si(rate, 'bit/s')}: {'dense' if fastest is dense else wins}")
    return sentences


def _here(others: Sequence[EncodingCost], dense: EncodingCost, here: float) -> str:
    """Return which compressors win over the measured link, and why the slowest one loses."""
    where = "here" if math.isinf(here) else f"at the measured rate of {si(here, 'bit/s')}"
    ranked = sorted(others, key=lambda cost: cost.step_s)
    winners = [cost for cost in ranked if cost.step_s < dense.step_s]
    wins = [f"{winner.name} wins {dense.step_s / winner.step_s:.2f}x" for winner in winners[:2]]
    if (last := ranked[-1]) not in winners:
        coded = (last.encode_s or 0.0) + (last.decode_s or 0.0)
        reason = f": encoding and decoding take {si(coded, 's')}" if coded else ""
        wins.append(f"{last.name} loses{reason}")
    return f"{where}: {', '.join(wins)}"


def learned_less(c: EncodingCost, dense: EncodingCost) -> bool:
    """Return whether a compressor's loss exceeds the loss of dense training after as many steps.

    Return False if one of the losses is unknown.
    """
    return c.loss is not None and dense.loss is not None and c.loss > WORSE * dense.loss


def tuned_table(losses: Sequence[TunedLoss]) -> Table[TunedLoss]:
    """Return a row for each compressor: its best learning rate and its loss.

    The row also has the loss of dense training with the same optimizer.
    """
    return Table(
        columns=[
            Column("", 99, lambda t: t.name, left=True),
            Column("optimizer", 98, lambda t: t.optimizer, left=True),
            Column("rate", 90, lambda t: f"{t.lr:g}{'*' if t.at_edge else ''}", raw=lambda t: t.lr),
            Column("loss", 97, lambda t: f"{t.loss:.3f}", raw=lambda t: t.loss),
            Column("dense", 95, lambda t: _of_dense(t), raw=lambda t: t.dense_loss),
            Column("its rate", 60, lambda t: "" if t.dense_lr is None else f"{t.dense_lr:g}"),
            Column("of dense", 80, lambda t: _times(t)),
        ],
        rows=losses,
    )


def _of_dense(t: TunedLoss) -> str:
    return "" if t.dense_loss is None else f"{t.dense_loss:.3f}"


def _times(t: TunedLoss) -> str:
    return "" if not t.dense_loss else f"{t.loss / t.dense_loss:.2f}x"


def tuned_notes(losses: Sequence[TunedLoss], untrained: Sequence[str] = ()) -> list[str]:
    """Return notes on the rates that were tried.

    They say if the best rate may lie beyond the grid, and which compressors gave no loss.
    """
    factors = ", ".join(f"{factor:g}" for factor in compressors.FACTORS)
    sentences = [
        f"each compressor, and dense training too, at its best learning rate: {factors} times the"
        " optimizer's usual rate were tried"
    ]
    if any(loss.at_edge for loss in losses):
        sentences.append("*: the best rate is at the end of that grid; a better one may lie beyond")
    if untrained:
        sentences.append(f"no loss at any rate: {', '.join(untrained)}")
    if ruined := [f"{loss.name} at {lr:g}" for loss in losses for lr in loss.diverged]:
        sentences.append(f"the loss diverged: {', '.join(ruined)}")
    return sentences


def tuned_tables(run: RunRecord) -> Iterator[TitledTable]:
    """Yield a table for every plan that searched the best learning rates."""
    for plan in run.plans:
        if plan.name.endswith(TUNED):
            losses = compressors.best(run, plan)
            notes = tuned_notes(losses, compressors.untrained(run, plan))
            yield TitledTable(title=plan.name, table=tuned_table(losses), notes=notes)


def curves(costs: Sequence[EncodingCost], here: float) -> list[Curve]:
    """Return curves of step time over link rate for dense training and the best compressors.

    Return no curves if no compressor wins at any link rate.
    """
    dense = next((cost for cost in costs if cost.name == DENSE), None)
    wins = [
        cost
        for cost in costs
        if DENSE in cost.pays
        and cost.pays[DENSE].rate > 0
        and not (dense is not None and learned_less(cost, dense))
    ]
    best = sorted(wins, key=lambda cost: cost.at(1e9, here))[:MOST_DRAWN]
    flat = [None] * len(DRAWN_GBPS)
    return [
        Curve(
            name=c.name,
            x=DRAWN_GBPS,
            y=[1e3 * c.at(rate * 1e9, here) for rate in DRAWN_GBPS],
            low=flat,
            high=flat,
        )
        for c in [*(cost for cost in costs if cost is dense), *best]
        if best
    ]
