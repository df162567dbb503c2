"""The difference between two windows: the terms of a mean step, its kernels or operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.record import Budget, Operator, Term


@dataclass(frozen=True, kw_only=True)
class TermChange:
    """One entry in both windows; ns in a mean step of a mean rank, 0 where it is not there."""

    name: str
    before_ns: float
    after_ns: float

    @property
    def more_ns(self) -> float:
        return self.after_ns - self.before_ns


def terms(before: Budget, after: Budget) -> tuple[TermChange, ...]:
    """Every term of either; the changes add up to that of the step."""
    both = ((term, before.mean_ns(term), after.mean_ns(term)) for term in Term)
    return tuple(TermChange(name=term, before_ns=a, after_ns=b) for term, a, b in both if a or b)


def names(
    before: Sequence[Operator], after: Sequence[Operator], whole: bool, most: int = 8
) -> tuple[TermChange, ...]:
    """Kernels or operators by name, those that changed most first.

    Unless both lists are ``whole``, a name that one of them lacks is left out: it may be short.
    """
    was, now = (
        {operator.name: operator.self_ns for operator in operators} for operators in (before, after)
    )
    operations = {**was, **now} if whole else was.keys() & now.keys()
    changes = [
        TermChange(name=name, before_ns=was.get(name, 0), after_ns=now.get(name, 0))
        for name in operations
    ]
    changes.sort(key=lambda change: (-abs(change.more_ns), change.name))
    return tuple(change for change in changes[:most] if change.more_ns)
