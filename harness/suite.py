"""``@scaling``: marks a test function whose items are the verdicts of its recipes' plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.recipes import Recipe

Function = TypeVar("Function", bound=Callable[..., Any])

#: Attribute of a marked function; the pytest plugin looks for it.
MARK = "__scaleproof_recipes__"


def scaling(*recipes: Recipe) -> Callable[[Function], Function]:
    """One pytest item per verdict of the plans that ``recipes`` return for the site.

    The function takes ``verdict`` and may add asserts of its own; the verdict itself is enforced
    by the plugin, so a body of only a docstring is enough.
    """

    def mark(function: Function) -> Function:
        setattr(function, MARK, recipes)
        return function

    return mark
