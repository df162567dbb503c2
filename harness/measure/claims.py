"""What a user's files claim in the description of a case: derived here, where none was imported.

A description is made in a process that has imported these files, which could write one of their
own. So what they are excused from follows from what they expect, and is not asked of them.
"""

from collections.abc import Iterator
from dataclasses import replace

from harness.base.errors import SpecError
from harness.cases import CaseSpec, Catalogue, Entry, twins
from harness.cases.heads import read_head
from harness.cases.limits import ROUNDED, loss_limit, rounding
from harness.record import Described, Expected, Reference


def of_files(case: CaseSpec, answer: Described, catalogue: Catalogue) -> Described:
    """The description with what keeps losses from being compared, or to the bit: a user's file
    excuses itself from nothing. A shipped strategy states facts.

    SpecError where a file says another thing of itself than when the case was planned.
    """
    theirs = [entry for entry in catalogue.entries_of(case) if not entry.shipped]
    for entry in theirs:
        _refuse_changed(entry)
    expected = answer.expected
    if expected is None or not theirs:
        return answer
    strategy = catalogue.get("strategies", case.strategy)
    excuses = [] if strategy.shipped else list(_excuses(case, expected, strategy))
    if answer.reference is None and case.communicate and not excuses:
        excuses.append("no reference")
    if answer.reference is not None and not _as_derived(case, expected, answer.reference, strategy):
        excuses.append("another reference")
    own_ideal = not strategy.shipped and expected.ideal_efficiency != 1
    return replace(
        answer,
        theirs=tuple(entry.kind for entry in theirs),
        own_ideal=own_ideal or expected.balance != 1,  # by a model whose FLOPs its own file counts
        excuses=tuple(excuses),
    )


def _refuse_changed(entry: Entry) -> None:
    _, head = read_head(entry.path)
    if head != entry.head:
        raise SpecError(
            "its head is another one than when the case was planned",
            where=str(entry.path),
            expected="a file that stays as it is",
            fix=f"git diff {entry.path}",
        )


def _excuses(case: CaseSpec, expected: Expected, strategy: Entry) -> Iterator[str]:
    """By what a user's strategy would keep its losses from being compared, or to the bit."""
    asked = case.knobs_of(strategy.name, strategy.knobs)
    claims = {
        "repeatable=False": not expected.repeatable,
        "casts=True": expected.casts,
        "reorders=True": expected.reorders,
        "jobs": strategy.supports.jobs > 1,
        "TWIN": bool(twins.fewer(strategy.name, asked, strategy.head.get("TWIN", {}))),
    }
    yield from (name for name, claimed in claims.items() if claimed)


def _as_derived(case: CaseSpec, expected: Expected, reference: Reference, strategy: Entry) -> bool:
    """Whether a reference compares as closely, on as many shards, as follows from the case."""
    mesh = strategy.supports.mesh(case)
    limit = loss_limit(case, mesh)
    if expected.reorders:
        limit = max(limit, rounding(case))
    if expected.casts:
        limit = ROUNDED
    shards = 1 if strategy.supports.oracle == "simulated" else mesh.shards
    stated = (reference.limit, reference.coarse, reference.shards)
    return stated == (limit, expected.casts, shards)
