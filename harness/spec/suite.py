"""``@scaling`` and ``@recovering``: mark test functions whose items are verdicts."""

from collections.abc import Callable
from typing import Any, TypeVar

from harness.base.marks import MARK, RECOVERS
from harness.spec.courses import Course
from harness.spec.recipes import Recipe
from harness.spec.site import Site

Function = TypeVar("Function", bound=Callable[..., Any])


def scaling(*recipes: Recipe) -> Callable[[Function], Function]:
    """One pytest item per verdict of the plans that ``recipes`` return for the site.

    The function takes ``verdict`` and may add asserts of its own; the verdict itself is enforced
    by the plugin, so a body of only a docstring is enough.
    """

    def mark(function: Function) -> Function:
        setattr(function, MARK, recipes)
        return function

    return mark


def recovering(*recipes: Callable[[Site], list[Course]]) -> Callable[[Function], Function]:
    """One pytest item per course that ``recipes`` return for the site: broken, and gone on with.

    The function takes ``verdict``: the worst that rules on recovery come to.
    """

    def mark(function: Function) -> Function:
        setattr(function, RECOVERS, recipes)
        return function

    return mark
