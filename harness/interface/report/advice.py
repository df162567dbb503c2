"""Print advice: what a run lost time to, which remedies may help, and what a trial measured."""

from collections.abc import Sequence

from harness.analysis.choices.trials import Loss, Tried
from harness.analysis.timeline.advice import LARGE
from harness.analysis.timeline.losses import WORDS
from harness.interface.report.text import Column, rule, table, wrap


def lost(losses: Sequence[Loss], width: int) -> list[str]:
    """Return a table for each case: a row for each large loss with the remedies that may help."""
    if not losses:
        return [f" no part of a step grew by {LARGE:.0%} of the step or more: there is no advice"]
    columns = [
        Column[Loss]("lost to", 9, lambda x: WORDS[x.term], left=True),
        Column("ms a step", 8, lambda x: f"{x.excess_ns / 1e6:.2f}"),
        Column("of the step", 7, lambda x: f"{x.share:.1%}"),
        Column("gives back", 9, lambda x: f"+{x.gain:.3f}"),
        Column("may help", 10, _may_help, left=True, prose=True),
    ]
    shown = []
    for case in dict.fromkeys(loss.case for loss in losses):
        of_case = [loss for loss in losses if loss.case == case]
        shown += [rule(case, width), *table(columns, of_case, width)]
    note = " gives back = efficiency gained if all of that growth is removed; no remedy gains more"
    return [*shown, *wrap(note, width, 1)]


def outcome(tried: Sequence[Tried], width: int) -> list[str]:
    """Return a table of the tried remedies for each case."""
    columns = [
        Column[Tried]("tried", 10, lambda t: t.remedy + ("" if t.alike else " *"), left=True),
        Column("gain [95%]", 9, _gain, left=True),
        Column("worst pair", 6, lambda t: "" if t.worst is None else f"{t.worst - 1:+.1%}"),
        Column("pairs", 4, lambda t: str(t.num_pairs or "")),
        Column("", 8, _reads, left=True, prose=True),
    ]
    shown = [rule("each measured with the unchanged case in the same blocks", width)]
    for case in dict.fromkeys(t.case for t in tried):
        shown += [f" {case}", *table(columns, [t for t in tried if t.case == case], width)]
    notes = " gain = change of samples per second relative to the unchanged case"
    if any(not t.alike for t in tried):
        notes += "; * changes the training: another batch size, or gradients with lower precision"
    return [*shown, *wrap(notes, width, 1)]


def _may_help(loss: Loss) -> str:
    return "\n".join(remedy.name for remedy in loss.remedies) or loss.change or "-"


def _gain(t: Tried) -> str:
    if t.ratio is None:
        return "n/a"
    span = "" if t.low is None or t.high is None else f" [{t.low - 1:+.1%}, {t.high - 1:+.1%}]"
    return f"{t.ratio - 1:+.1%}{span}"


def _reads(t: Tried) -> str:
    if t.ratio is None:
        return t.why
    if t.low is not None and t.low > 1:
        return "faster"
    if t.high is not None and t.high < 1:
        return "SLOWER"
    return "no difference detected"
