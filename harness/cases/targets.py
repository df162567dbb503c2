"""What a command line can name to be measured: a case, a recipe, a file or folder of suites."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import get_origin, get_type_hints

from harness.base import modules
from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import SpecError, nearest
from harness.base.marks import MARK
from harness.cases.case import Ablation, CaseSpec, Device, Mode
from harness.cases.catalogue import Catalogue
from harness.cases.metrics import metric
from harness.cases.plan import Plan, Role
from harness.cases.recipes import (
    ON_GPUS,
    PACED,
    REAL,
    Recipe,
    ladder,
    learning,
    pinned,
    strong_worlds,
)
from harness.cases.site import Site
from harness.host import environment

#: Fields of a case that its name, the site or another option says; an ablation is no setting.
NAMED = frozenset({
    "strategy", "model", "size", "mode", "compressor", "world_size", "nodes", "device",
    "first_device", "stand_in", "script", "samples_per_step", "setup", "communicate", "knobs",
    "environment",
})  # fmt: skip
#: All others may be set.
SETTABLE = tuple(f.name for f in fields(CaseSpec) if f.name not in NAMED)


def plans_of(
    target: str,
    site: Site,
    catalogue: Catalogue,
    settings: dict[str, Json],
    ablations: Sequence[Ablation] = (),
    chosen: Callable[[frozenset[str]], bool] = lambda marks: True,
    control: bool = False,
) -> list[Plan]:
    """The plans that a target names: a case, a file, a folder of suites, or file.py::function.

    ``settings`` replace fields of a case (``precision``, ``global_batch``) or set knobs
    (``ddp.bucket_cap_mb``); they and ``ablations`` apply to cases only. ``chosen`` says by a
    suite's marks (``smoke``, ``nightly``) whether its plans count. ``control``: with a pinned one.
    """
    path, _, function = target.partition("::")
    if _is_there(path):
        if settings or ablations:
            option = "--set" if settings else "--ablate"
            raise SpecError(
                f"{option} works only with a single case", where=target, fix="edit the recipe"
            )
        raw = [
            plan for f in _files(Path(path)) for plan in _recipes(f, site, function or None, chosen)
        ]
    else:
        raw = [case_plan(target, site, catalogue, settings, ablations)]
    unique = {p.hash: p for p in (normalise(plan, catalogue, control) for plan in raw)}
    return list(unique.values())


def case_plan(
    name: str,
    site: Site,
    catalogue: Catalogue,
    settings: dict[str, Json],
    ablations: Sequence[Ablation] = (),
) -> Plan:
    """A ladder of one case, ``ddp/decoder-tiny/weak``, over the site's worlds."""
    case = case_of(name, site, settings)
    strategy = catalogue.get("strategies", case.strategy)
    supports = strategy.supports
    if strategy.measured_by:
        return learning(case, strategy.measured_by)
    stand_in = catalogue.get("models", case.model).head.get("STAND_IN")
    worlds: Sequence[int] = site.worlds if supports.worlds == "any" else (1,)
    return ladder(
        case,
        strong_worlds(case, worlds),
        baselines=("sum_of_devices",) if case.shares else supports.baselines,
        metrics=supports.metrics,
        protocol=PACED if stand_in else ON_GPUS if site.device is Device.CUDA else REAL,
        shape=site.shape,
        ablations=ablations,
    )


def case_of(name: str, site: Site, settings: Mapping[str, Json]) -> CaseSpec:
    """The case ``ddp/decoder-tiny/weak`` on all of a site, with fields and knobs that are set."""
    mode: str = Mode.WEAK
    if name.count("/") == 2:
        name, _, mode = name.rpartition("/")
    return changed(site.case(name, mode), settings)


def changed(case: CaseSpec, settings: Mapping[str, Json]) -> CaseSpec:
    """The case with fields and knobs that are set; SpecError for what none has."""
    changes: dict[str, Json] = {}
    knobs = dict(case.knobs)
    variables = dict(case.environment or {})
    for key, value in settings.items():
        if "." in key:
            knobs[key] = value
        elif key in SETTABLE:
            changes[key] = _read(key, value)
        elif environment.of_backend(key):
            variables[key] = str(value)
        else:
            raise SpecError(
                f"--set {key}: no such field{nearest(key, SETTABLE)}",
                expected=f"{', '.join(SETTABLE)}, file.knob, or a variable like NCCL_ALGO",
                fix="scaleproof list",
            )
    try:
        base = to_doc(replace(case, knobs=knobs, environment=variables or case.environment))
        return from_doc(CaseSpec, {**base, **changes}, "--set")
    except ValueError as error:
        raise SpecError(str(error), fix="scaleproof list") from None


def _read(name: str, value: Json) -> Json:
    """A value as its field's type has it: ``1,0.5`` is a list, ``0123`` a text where texts are."""
    hint = _HINTS[name]
    if get_origin(hint) is tuple:
        numbers = value.split(",") if isinstance(value, str) else [value]
        try:
            return [float(number) for number in numbers]
        except (TypeError, ValueError):
            raise SpecError(
                f"--set {name}={value}", expected="numbers, as 1,0.5", fix=f"--set {name}=1,0.5"
            ) from None
    if hint is str or (isinstance(hint, type) and issubclass(hint, str)):
        return str(value)
    return value


_HINTS = get_type_hints(CaseSpec)


def _is_there(path: str) -> bool:
    """Whether a target is a path; a name that no file could have is none."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("test_*.py")) if path.is_dir() else [path]


def _recipes(
    path: Path, site: Site, function: str | None, chosen: Callable[[frozenset[str]], bool]
) -> list[Plan]:
    """The plans of a suite's marked functions, or of one recipe function of a file."""
    try:
        module = modules.load(str(path))
    except SpecError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == str(path.resolve())), "")
        raise SpecError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where=f"{path}:{line}" if line else str(path),
            expected="a file of recipes",
            fix=f"python {path}",
        ) from None
    if function is not None:
        recipe = getattr(module, function, None)
        if recipe is None:
            raise SpecError(f"no function {function!r}", where=str(path), fix=f"grep '^def' {path}")
        recipes = getattr(recipe, MARK, (recipe,))
    else:
        marked = [f for f in vars(module).values() if chosen(_marks(module) | _marks(f))]
        recipes = tuple(r for f in marked for r in getattr(f, MARK, ()))
    return [plan for recipe in recipes for plan in _call(recipe, site, path)]


def _marks(of: object) -> frozenset[str]:
    """The names of a function's or a module's pytest marks."""
    marks = getattr(of, "pytestmark", ())
    return frozenset(m.name for m in (marks if isinstance(marks, list | tuple) else (marks,)))


def _call(recipe: Recipe, site: Site, path: Path) -> Sequence[Plan]:
    """A recipe's plans, or one clear error when it is something else."""
    plans = recipe(site) if callable(recipe) else None
    if not isinstance(plans, list | tuple) or not all(isinstance(p, Plan) for p in plans):
        raise SpecError(
            f"{getattr(recipe, '__name__', recipe)!r} is not a recipe: it does not return plans",
            where=str(path),
            expected="a function of the site that returns a list of plans",
            fix="scaleproof list suites",
        )
    return plans


def normalise(plan: Plan, known: Catalogue, control: bool = False) -> Plan:
    """The plan with every case checked and brought to its one spelling; maybe with a control."""
    plan = pinned(plan) if control else plan
    _learns(plan, known)
    subjects_first = sorted(plan.arms, key=lambda a: a.role is not Role.SUBJECT)  # to be blamed
    cases = {a.name: known.normalise(a.case) for a in subjects_first}
    target = None if plan.target is None else known.normalise(plan.target)
    arms = tuple(replace(a, case=cases[a.name]) for a in plan.arms)
    return replace(plan, arms=arms, target=target)


def _learns(plan: Plan, known: Catalogue) -> None:
    """SpecError if only the speed of a strategy is measured that trains other mathematics."""
    if any(metric(c.metric).of_loss for c in plan.contrasts):
        return
    for arm in plan.arms:
        if arm.case.script or arm.role is Role.CONTROL:
            continue
        if measured_by := known.get("strategies", arm.case.strategy).measured_by:
            raise SpecError(
                f"how fast {arm.case.strategy} steps says nothing of how it learns",
                where=arm.case.id,
                expected=f"time_to_loss or samples_to_loss, beside {measured_by}",
                fix=f"scaleproof run {arm.case.family}",
            )
