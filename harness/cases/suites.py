"""Decorators by which a test names its cases and the thresholds for them.

Example: ``@scaling("ddp/decoder-350m", precision="autocast", efficiency=0.90)``.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from harness.base.errors import SpecError
from harness.base.programs import BOUNDS, MARK, RECOVERS
from harness.cases import rules
from harness.cases.case import CaseSpec, Device, Mode
from harness.cases.fault_scenario import FaultScenario
from harness.cases.metrics import metric
from harness.cases.plan import Plan, Role
from harness.cases.recipes import ON_GPUS, REAL, Recipe, ladder, strong_worlds
from harness.cases.rules import BoundSource, Threshold
from harness.cases.site import Site

Function = TypeVar("Function", bound=Callable[..., Any])
#: One bound for all world sizes (``0.9``), or bounds by world size (``{8: 6.8}``).
Bound = float | Mapping[int, float]
#: The decorator that errors show as an example.
EXAMPLE = '@scaling("ddp/decoder-tiny", efficiency=0.9)'


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The lower bounds that a test sets for its plans.

    ``least`` holds the bounds by metric. ``baseline`` is the kind of baseline to which they refer.
    """

    least: Mapping[str, Bound]
    baseline: str | None

    def rules(self, test: str, plan: Plan) -> list[Threshold]:
        """Return the thresholds of a test for every family of subjects in a plan.

        The thresholds are named after the test's node id. Raises SpecError for a bound that all or
        no possible values meet.
        """
        subjects = [arm.case for arm in plan.arms if arm.role is Role.SUBJECT]
        kinds = {(case.family + case.extras, case.mode): case for case in subjects}
        thresholds = []
        for metric_name, bound in self.least.items():
            by_world = bound if isinstance(bound, Mapping) else {0: bound}
            for world, least in by_world.items():
                _check_bound(test, metric_name, world, least)
                for family, mode in kinds:
                    thresholds.append(
                        Threshold(
                            name=f"{test} {metric_name}{f' of {world}' if world else ''}",
                            case=re.sub(r"([*?[])", r"[\1]", family),
                            metric=metric_name,
                            unit=metric(metric_name).unit,
                            source=BoundSource.REQUIREMENT,
                            mode=mode,
                            baseline=self.baseline,
                            world=(world,) if world else (),
                            at_least=float(least),
                        )
                    )
        return thresholds


def _check_bound(test: str, of: str, world: object, least: object) -> None:
    """Raise SpecError unless ``world`` is a possible world size and ``least`` a useful bound.

    A bound is useful if it is a number that some possible values meet and others miss.
    """
    number = isinstance(least, int | float) and not isinstance(least, bool)
    if not number or not math.isfinite(float(str(least))):
        raise SpecError(f"{test}: {of}={least!r}", expected="a number", fix=f"edit {test}")
    if not isinstance(world, int) or world < 0:
        raise SpecError(
            f"{test}: {of} at {world!r} ranks", expected="world sizes: {8: 6.8}", fix=f"edit {test}"
        )
    for _, wrong, right in rules.bounds({"metric": of, "at_least": float(str(least))}):
        raise SpecError(f"{test}: {of}={least!r}: {wrong}", expected=right, fix=f"edit {test}")


def scaling(
    *what: Recipe | str,
    mode: str = Mode.WEAK,
    baseline: str | None = None,
    efficiency: Bound | None = None,
    speedup: Bound | None = None,
    **fields: Any,
) -> Callable[[Function], Function]:
    """Mark a test function to measure cases or recipes; each verdict becomes one pytest item.

    Cases are measured over the world sizes of the site. The function takes the argument ``verdict``
    and may contain further asserts. The pytest plugin enforces the verdict itself, so a body with
    only a docstring is sufficient.

    Args:
        what: a case, ``"ddp/decoder-350m"``, or recipes, which return plans for a site.
        mode: mode of a named case: weak, or strong with ``global_batch``.
        baseline: baseline of a named case, to which the bounds refer: any baseline of ``ladder``
            (default: plain).
        efficiency, speedup: smallest value that passes: one for all world sizes, or a dict by world
            size.
        fields: fields of a named case, as ``--set`` takes them: ``precision="autocast"``.
    """
    named = [item for item in what if isinstance(item, str)]
    bounds = {"efficiency": efficiency, "speedup": speedup}
    least = {name: bound for name, bound in bounds.items() if bound is not None}
    metrics = tuple(least) or ("efficiency",)
    against = baseline or ("plain" if named else None)
    recipes = tuple(
        _named(item, mode, against or "plain", metrics, fields) if isinstance(item, str) else item
        for item in what
    )
    if (mistake := _mistake(what, fields) or _nothing(least)) is not None:
        recipes = (_refusing(mistake),)
    if len(what) == 1 and _is_test(what[0]):  # ``@scaling`` was written without parentheses
        setattr(what[0], MARK, recipes)
        return cast(Callable[[Function], Function], what[0])

    def mark(function: Function) -> Function:
        own_recipes = (_refusing(_twice(function)),) if hasattr(function, MARK) else recipes
        setattr(function, MARK, own_recipes)
        setattr(function, BOUNDS, Bounds(least=least, baseline=against))
        return function

    return mark


def recovering(*recipes: Callable[[Site], list[FaultScenario]]) -> Callable[[Function], Function]:
    """Mark a test function to run fault scenarios.

    Each scenario that ``recipes`` return becomes one pytest item. The function takes the argument
    ``verdict``, which is the worst verdict of the recovery thresholds.
    """

    def mark(function: Function) -> Function:
        setattr(function, RECOVERS, recipes)
        return function

    return mark


def _named(
    name: str, mode: str, baseline: str, metrics: Sequence[str], fields: Mapping[str, Any]
) -> Recipe:
    """Return a recipe that makes a scaling sweep of a case over the worlds of the site."""

    def recipe(site: Site) -> list[Plan]:
        case: CaseSpec = site.case(name, mode, **fields)
        worlds = strong_worlds(case, site.worlds)
        rungs = (
            worlds
            if baseline == "wrapped"
            else ([world for world in worlds if world > 1] or worlds)
        )
        protocol = ON_GPUS if site.device is Device.CUDA else REAL
        return [
            ladder(
                case,
                rungs,
                shape=site.shape,
                baselines=(baseline,),
                metrics=metrics,
                protocol=protocol,
            )
        ]

    return recipe


def _is_test(what: object) -> bool:
    """Return whether this is the decorated function, and not a recipe."""
    return inspect.isfunction(what) and "verdict" in inspect.signature(what).parameters


def _mistake(what: Sequence[object], fields: Mapping[str, Any]) -> SpecError | None:
    """Return the mistake in the arguments of ``@scaling``, or None if there is none."""
    wrong = [item for item in what if not callable(item) and not isinstance(item, str)]
    if wrong:
        problem = f"@scaling({wrong[0]!r})"
        expected = "a case or a recipe"
    elif not what or _is_test(what[0]):
        problem, expected = "@scaling without a case", "a case or a recipe to measure"
    elif fields and not any(isinstance(item, str) for item in what):
        problem = f"@scaling: {', '.join(fields)} cannot be set for a recipe"
        expected = "fields of a named case"
    else:
        return None
    return SpecError(problem, expected=f"{expected}: {EXAMPLE}", fix="scaleproof new suites")


def _nothing(least: Mapping[str, Bound]) -> SpecError | None:
    """Return the mistake if a bound lists no world sizes, or None."""
    for name, bound in least.items():
        if isinstance(bound, Mapping) and not bound:
            problem = f"@scaling({name}={{}}) requires nothing"
            return SpecError(problem, expected="a number, or {8: 6.8}", fix=f"edit {name}={{}}")
    return None


def _twice(function: Callable[..., Any]) -> SpecError:
    """Return the mistake for a function with two ``@scaling`` decorators.

    Only one of them would take effect.
    """
    return SpecError(
        f"{function.__name__} has @scaling twice",
        expected="a separate function for each @scaling",
        fix="scaleproof new suites",
    )


def _refusing(mistake: SpecError) -> Recipe:
    """Return a recipe that raises this error. Pytest then reports it as the result of the test."""

    def recipe(site: Site) -> list[Plan]:
        raise mistake

    return recipe
