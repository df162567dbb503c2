"""Targets of a command line: a case, a recipe, a file, or a folder of suites."""

import ast
import difflib
import math
import re
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import msgspec

from harness.base import programs
from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import ScaleproofError, SpecError, nearest
from harness.base.programs import BOUNDS, MARK, is_suite
from harness.cases.case import Ablation, CaseSpec, Device, Mode
from harness.cases.catalogue import Catalogue
from harness.cases.fault_scenario import FaultScenario
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
from harness.cases.rules import Threshold
from harness.cases.site import Site
from harness.host import environment

#: Fields that ``--set`` does not accept, because the name of the case or another option sets them.
NAMED = frozenset({
    "strategy", "model", "size", "mode", "compressor", "world_size", "nodes", "device",
    "first_device", "stand_in", "script", "samples_per_step", "accepted", "setup", "communicate",
    "knobs", "environment",
})  # fmt: skip
#: How a user sets a field that ``--set`` does not accept. Fields without an entry cannot be set.
_SAID_BY = dict(
    strategy="the name of the case, as ddp/decoder-tiny/weak",
    model="the name of the case, as ddp/decoder-tiny/weak",
    size="the name of the case, as ddp/decoder-tiny/weak",
    mode="the name of the case, as ddp/decoder-tiny/weak",
    compressor="the name of the case, as compressed:topk/decoder-tiny",
    world_size="--cpus 4 or --gpus 8", device="--cpus 4 or --gpus 8", nodes="--nodes 2x4",
    communicate="--ablate communication", samples_per_step="--samples-per-step 32",
    accepted="--accept replicas",
    knobs="its knobs, as --set ddp.bucket_cap_mb=25",
    environment="its variables, as --set NCCL_ALGO=Ring",
)  # fmt: skip
#: The id of a case as tables print it: ``ddp/decoder-tiny/weak@2x4gpu+clip=1``.
_ID = re.compile(
    r"(?P<family>[^@+]+)@(?P<nodes>\d+x\d+|\d+(\+\d+)*)(?P<unit>cpu|gpu)(?P<fields>(\+[^+=]+=[^+]*)*)$"
)
#: The fields of a case that ``--set`` accepts.
SETTABLE = tuple(field.name for field in fields(CaseSpec) if field.name not in NAMED)


def plans_of(
    target: str,
    site: Site,
    catalogue: Catalogue,
    settings: dict[str, Json],
    ablations: Sequence[Ablation] = (),
    chosen: Callable[[frozenset[str]], bool] = lambda marks: True,
    control: bool = False,
) -> list[Plan]:
    """Return the plans that a target names.

    The target is a case, a file, a folder of suites, or ``file.py::function``. ``settings`` sets
    fields of a case (``precision``, ``global_batch``) and knobs (``ddp.bucket_cap_mb``).
    ``settings`` and ``ablations`` apply to cases only. ``chosen`` takes the marks of a suite's
    function (``smoke``, ``nightly``), and returns whether its plans are included. ``control`` adds
    an arm in the pinned environment to every plan.
    """
    path, _, function = target.partition("::")
    if _is_there(path):
        if settings or ablations:
            option = "--set" if settings else "--ablate"
            raise SpecError(
                f"{option} works only with a single case", where=target, fix="edit the recipe"
            )
        raw = [
            plan
            for f in _files(target, site)
            for plan in _recipes(f, site, function or None, chosen)
        ]
    elif "/" in target or target.partition(":")[0] in catalogue.entries["strategies"]:
        raw = [case_plan(target, site, catalogue, settings, ablations)]
    else:
        raise SpecError(
            f"{path}: neither a folder of suites nor a file",
            where=str(Path.cwd()),
            expected="a folder, file.py, file.py::recipe, or a case such as ddp/decoder-tiny",
            fix="scaleproof new" + f" {path}" * (not path.endswith(".py")),
        )
    unique = {p.hash: p for p in (normalise(plan, catalogue, control) for plan in raw)}
    return list(unique.values())


def bounds_of(
    target: str,
    site: Site,
    catalogue: Catalogue,
    chosen: Callable[[frozenset[str]], bool] = lambda marks: True,
) -> tuple[Threshold, ...]:
    """Return the thresholds that a target's functions set with ``@scaling(..., efficiency=0.9)``.

    The result is empty if the target is a case.
    """
    path, _, name = target.partition("::")
    if not _is_there(path):
        return ()
    rules: list[Threshold] = []
    for file in _files(target, site):
        for function in _functions(_module(file), name or None, chosen):
            bounds: Any = getattr(function, BOUNDS, None)
            for recipe in getattr(function, MARK, ()) if bounds is not None else ():
                for plan in _call(recipe, site, file):
                    test = f"{file}::{function.__name__}"
                    rules += bounds.rules(test, normalise(plan, catalogue))
    return tuple(dict.fromkeys(rules))


def case_plan(
    name: str,
    site: Site,
    catalogue: Catalogue,
    settings: dict[str, Json],
    ablations: Sequence[Ablation] = (),
) -> Plan:
    """Return the plan of a case such as ``ddp/decoder-tiny/weak``.

    It is a scaling sweep over the worlds of the site. For a strategy that changes the mathematics
    of training, it compares the time to a loss.
    """
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
    """Return a case such as ``ddp/decoder-tiny/weak`` on all ranks of a site.

    ``settings`` sets fields and knobs of the case.
    """
    mode: str = Mode.WEAK
    if as_printed := _ID.match(name):
        _refuse_id(as_printed)
    if name.count("/") == 2:
        name, _, mode = name.rpartition("/")
    return changed(site.case(name, mode), settings)


def _refuse_id(printed: re.Match[str]) -> NoReturn:
    """Raise SpecError for the id of a case, which tables print but commands do not take.

    The suggested fix is the command that measures this case.
    """
    words = ["scaleproof", "run", printed["family"]]
    ranks = sum(a * b for a, b in _nodes(printed["nodes"]))
    words += [f"--{printed['unit']}s", str(ranks)]
    if not printed["nodes"].isdigit():
        words += ["--nodes", printed["nodes"]]
    for item in filter(None, printed["fields"].split("+")):
        words += ["--set", item]
    raise SpecError(
        "a case on the command line has no ranks and no settings in its name",
        where=printed[0],
        expected="strategy[:compressor]/model-size[/mode]",
        fix=shlex.join(words),
    )


def _nodes(layout: str) -> Iterator[tuple[int, int]]:
    """Yield (number of nodes, ranks per node) for each part of a layout: ``4+8`` or ``2x4``."""
    for part in layout.split("+"):
        count, times, ranks = part.partition("x")
        yield (int(count), int(ranks)) if times else (1, int(count))


def changed(case: CaseSpec, settings: Mapping[str, Json]) -> CaseSpec:
    """Return the case with these fields, knobs and environment variables set.

    Raise SpecError for a name that is none of these.
    """
    changes: dict[str, Json] = {}
    knobs = dict(case.knobs)
    backend = settings.get("backend", case.backend)
    variables = dict((case.environment or {}) if backend == case.backend else {})
    for key, value in settings.items():
        if "." in key:
            knobs[key] = value
        elif key in SETTABLE:
            changes[key] = _read(key, value)
        elif environment.of_backend(key):
            variables[key] = str(value)
        elif key in _SAID_BY:
            raise SpecError(
                f"--set {key}: another option sets this field",
                expected=_SAID_BY[key],
                fix="scaleproof run --help",
            )
        else:
            raise SpecError(
                f"--set {key}: no such field{nearest(key, SETTABLE)}",
                expected=f"{', '.join(SETTABLE)}, file.knob, or a variable like NCCL_ALGO",
                fix="scaleproof run list",
            )
    try:
        base = to_doc(replace(case, knobs=knobs, environment=variables or None))
        return from_doc(CaseSpec, {**base, **changes}, "--set")
    except ValueError as error:
        raise SpecError(str(error), fix="scaleproof run list") from None


def _read(name: str, value: Json) -> Json:
    """Convert a value to the type of its field.

    For example, ``1,0.5`` becomes a list, and ``0123`` stays a string if the field is a string.
    """
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
        value = str(value)
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        what = f"--set {name}={value}"
        fix = f"--set {name}={_value_for(name, value)}"
        raise SpecError(what, expected=takes(hint), fix=fix) from None
    return value


def takes(hint: Any, quote: str = "") -> str:
    """Describe the values that a field of this type accepts.

    Examples are ``true or false``, ``fp32, bf16``, and ``a number``.
    """
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (NoneType, ...)]
    kind = kinds[0]
    if isinstance(kind, EnumType):
        values: list[str] = list(kind)
        return ", ".join(f"{quote}{value}{quote}" for value in values)
    plain = {
        bool: f"{quote}true{quote} or {quote}false{quote}",
        int: "a whole number",
        float: "a number",
        str: "a text",
    }
    word = plain[kind]
    return f"{word.removeprefix('a ')}s, with commas" if get_origin(hint) is tuple else word


def _value_for(name: str, value: Json) -> str:
    """Return a valid value for a suggestion.

    It is the value that the user probably meant, or else the default.
    """
    hint = _HINTS[name]
    if hint is bool:
        return "false" if str(value).lower() in ("0", "no", "n", "off", "f") else "true"
    if isinstance(hint, EnumType) and (near := difflib.get_close_matches(str(value), hint, 1)):
        return str(near[0])
    if type(value) is float and int in (hint, *get_args(hint)) and 1 <= value < math.inf:
        return str(round(value))
    default = next(field.default for field in fields(CaseSpec) if field.name == name)
    return "8" if default is None else str(default)


#: The types of the fields of a case, by which values of ``--set`` are converted.
_HINTS = get_type_hints(CaseSpec)


def _is_there(path: str) -> bool:
    """Return whether a target is an existing path; False if it cannot be a file name."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def _files(target: str, site: Site) -> list[Path]:
    """Return the files of a target that may be imported: suites, or the file of a named function.

    Raises SpecError for a file that is not a suite, because importing a training script would run
    it.
    """
    path, _, function = target.partition("::")
    file = Path(path)
    if file.is_dir():
        return sorted(filter(_may_be_imported, file.glob("test_*.py")))
    if function or _may_be_imported(file):
        return [file]
    ranks = f"--{'cpus' if site.device is Device.CPU else 'gpus'} {site.world_size}"
    raise SpecError(
        "no function in it is marked @scaling, so it was not imported",
        where=path,
        expected="a suite, or --script to measure a training script",
        fix=f"scaleproof run --script {ranks} -- {shlex.quote(path)}",
    )


def _may_be_imported(file: Path) -> bool:
    """Return whether a file is a suite or cannot be parsed.

    Importing a file that cannot be parsed is harmless, and reports the syntax error.
    """
    try:
        ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    return is_suite(file)


def _recipes(
    path: Path, site: Site, function: str | None, chosen: Callable[[frozenset[str]], bool]
) -> list[Plan]:
    """Return the plans of a suite's marked functions, or of one recipe function in a file."""
    module = _module(path)
    if function is not None and not hasattr(module, function):
        raise SpecError(f"no function {function!r}", where=str(path), fix=f"grep '^def' {path}")
    recipes = [
        recipe
        for named_function in _functions(module, function, chosen)
        for recipe in getattr(named_function, MARK, () if function is None else (named_function,))
    ]
    return [plan for recipe in recipes for plan in _call(recipe, site, path)]


def _module(path: Path) -> Any:
    """Import a file of recipes. Raise SpecError with the line of the file if the import fails."""
    try:
        return programs.load_module(str(path))
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where=_line_of(error, path),
            expected="a file of recipes",
            fix=f"python {path}",
        ) from None


def _functions(
    module: Any, name: str | None, chosen: Callable[[frozenset[str]], bool]
) -> list[Any]:
    """Return the named function, or all functions whose marks are ``chosen``."""
    if name is not None:
        return [getattr(module, name)] if hasattr(module, name) else []
    return [f for f in vars(module).values() if chosen(_marks(module) | _marks(f))]


def _marks(of: object) -> frozenset[str]:
    """Return the names of the pytest marks of a function or a module."""
    marks = getattr(of, "pytestmark", ())
    return frozenset(m.name for m in (marks if isinstance(marks, list | tuple) else (marks,)))


def _line_of(error: BaseException, path: Path) -> str:
    """Return the innermost line of a file in a traceback: ``file.py:7``."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.resolve())]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _call(recipe: Recipe, site: Site, path: Path) -> Sequence[Plan]:
    """Return the plans of a recipe. Raise SpecError if it fails or returns anything else."""
    try:
        plans: object = recipe(site) if callable(recipe) else None
    except ScaleproofError:
        raise
    except Exception as error:
        name = getattr(recipe, "__name__", recipe)
        raise SpecError(
            f"{name!r} failed: {type(error).__name__}: {error}",
            where=_line_of(error, path),
            expected="a function of the site that returns a list of plans",
            fix="scaleproof run list suites",
        ) from None
    if isinstance(plans, list | tuple) and plans and isinstance(plans[0], FaultScenario):
        raise SpecError(
            f"{getattr(recipe, '__name__', recipe)!r} returns fault scenarios instead of plans",
            where=str(path),
            expected="a recipe that returns plans; `faults recover` runs fault scenarios",
            fix=f"scaleproof faults recover {plans[0].case.family}",
        )
    if not isinstance(plans, list | tuple) or not all(isinstance(plan, Plan) for plan in plans):
        raise SpecError(
            f"{getattr(recipe, '__name__', recipe)!r} is not a recipe: it does not return plans",
            where=str(path),
            expected="a function of the site that returns a list of plans",
            fix="scaleproof run list suites",
        )
    return plans


def normalise(plan: Plan, catalogue: Catalogue, control: bool = False) -> Plan:
    """Return the plan with every case checked and in canonical form.

    ``control`` adds an arm in the pinned environment.
    """
    plan = pinned(plan) if control else plan
    _learns(plan, catalogue)
    # Subjects are checked first, because errors should name them.
    subjects_first = sorted(plan.arms, key=lambda arm: arm.role is not Role.SUBJECT)
    cases = {arm.name: catalogue.normalise(arm.case) for arm in subjects_first}
    target = None if plan.target is None else catalogue.normalise(plan.target)
    arms = tuple(replace(arm, case=cases[arm.name]) for arm in plan.arms)
    return replace(plan, arms=arms, target=target)


def _learns(plan: Plan, catalogue: Catalogue) -> None:
    """Raise SpecError if a plan measures only the speed of a strategy that changes the mathematics
    of training.
    """
    if any(metric(contrast.metric).of_loss for contrast in plan.contrasts):
        return
    for arm in plan.arms:
        if arm.case.script or arm.role is Role.CONTROL:
            continue
        if measured_by := catalogue.get("strategies", arm.case.strategy).measured_by:
            raise SpecError(
                f"the step time of {arm.case.strategy} does not show how well it learns",
                where=arm.case.id,
                expected=f"a plan that compares time_to_loss or samples_to_loss with {measured_by}",
                fix=f"scaleproof run {arm.case.family}",
            )
