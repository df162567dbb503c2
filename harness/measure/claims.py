"""What a user's files claim in the description of a case: derived here, where none was imported.

A description is made in a process that has imported these files, which could write one of their
own. So what they are excused from follows from what they expect, and is not asked of them.
"""

from dataclasses import replace

from harness.cases import CaseSpec, Catalogue
from harness.record import Described


def of_files(case: CaseSpec, answer: Described, catalogue: Catalogue) -> Described:
    """The description with what keeps losses from being compared, or to the bit: a user's file
    excuses itself from nothing. A shipped strategy states facts.
    """
    expected = answer.expected
    if expected is None or all(entry.shipped for entry in catalogue.entries_of(case)):
        return answer
    strategy = catalogue.get("strategies", case.strategy)
    claims = {
        "repeatable=False": not expected.repeatable,
        "casts=True": expected.casts,
        "reorders=True": expected.reorders,
        "jobs": strategy.supports.jobs > 1,
    }
    excuses = [name for name, claimed in claims.items() if claimed and not strategy.shipped]
    if answer.reference is None and case.communicate and not excuses:
        excuses.append("no reference")
    own_ideal = not strategy.shipped and expected.ideal_efficiency != 1
    return replace(answer, own_ideal=own_ideal, excuses=tuple(excuses))
