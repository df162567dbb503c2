"""The registry of remarks: observations worth a look that are not certainly mistakes.

A remark is one function with the decorator ``remark``. The screen, the page and the table in
docs/your_own_training.md are made from the registry.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord

#: Returns the remark on one world size, given the launches of the smallest one; empty if there is
#: none.
Observe = Callable[[ScriptRow, Sequence[LaunchRecord]], str]


@dataclass(frozen=True)
class Remark:
    """One kind of remark: what is observed, the possible mistakes, and the function."""

    observation: str
    mistake: str
    observe: Observe


#: A figure, with its unit, in which remarks of one kind may differ.
_FIGURE = re.compile(r"\d[\d.,]*( ([num]?s|[kMG]?B)\b|%)?|\b\w*s\b")
#: All kinds of remarks, in the order in which they are shown.
REMARKS: list[Remark] = []


def remark(observation: str, mistake: str) -> Callable[[Observe], Observe]:
    """Register a function as a kind of remark."""

    def register(observe: Observe) -> Observe:
        REMARKS.append(Remark(observation, mistake, observe))
        return observe

    return register


def remarks(rows: Sequence[ScriptRow]) -> Iterator[str]:
    """Yield the remarks on a script, each with the world sizes that it concerns.

    If a remark has other figures at several world sizes, those of the largest one are shown.
    """
    for kind in REMARKS:
        of_worlds = {row.arm.case.world: kind.observe(row, rows[0].launches) for row in rows}
        made = {world: sentence for world, sentence in of_worlds.items() if sentence}
        if not made:
            continue
        by_form: dict[str, dict[str, str]] = {}
        for world, sentence in made.items():
            by_form.setdefault(_FIGURE.sub("", sentence), {})[world] = sentence
        for of_form in by_form.values():
            shown = list(of_form.values())[-1]
            alike = ", ".join(world for world, sentence in of_form.items() if sentence == shown)
            others = ", ".join(world for world, sentence in of_form.items() if sentence != shown)
            yield f"{alike}{f' (similar: {others})' if others else ''}: {shown}"


def table() -> list[str]:
    """Return the lines of a Markdown table of all kinds of remarks."""
    rows = [f"| {kind.observation} | {kind.mistake} |" for kind in REMARKS]
    return ["| observation | possible mistake |", "|---|---|", *rows]
