"""``plan``: what would be launched, how long it will take, and what each case will need."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from harness import contrasts, obstacles, options, verdict
from harness import machine as machines
from harness.codec import Json, from_doc, to_doc
from harness.discover import Catalogue
from harness.errors import SpecError
from harness.machine import Machine
from harness.recipes import PACED, REAL, Recipe, ladder, metrics_of, strong_worlds
from harness.record import Described
from harness.report import text
from harness.site import Site
from harness.spec import Ablation, CaseSpec, Mode, Plan
from harness.suite import MARK
from harness.thresholds import Threshold
from harness.units import duration, si

#: Fields of a case that ``--set`` may change; the others follow from its name and the site.
SETTABLE = (
    "micro_batch", "global_batch", "seq_len", "precision", "optimizer", "accumulate",
    "checkpoint", "data", "seed", "shares", "devices_per_rank", "stragglers",
)  # fmt: skip

#: Seconds that a launch costs beside its steps, and a step when nothing better is known.
LAUNCH_S, GATE_S = 0.15, 1.5


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """One plan with what the agent said of its cases, and which rules judge each arm."""

    plan: Plan
    described: dict[str, Described]
    rules: dict[str, list[str]]
    num_launches: int


def plans_of(
    target: str,
    site: Site,
    catalogue: Catalogue,
    settings: dict[str, Json],
    ablations: Sequence[Ablation] = (),
) -> list[Plan]:
    """The plans that a target names: a case, a file, a folder of suites, or file.py::function.

    ``settings`` replace fields of a case (``precision``, ``global_batch``) or set knobs
    (``ddp.bucket_cap_mb``); they and ``ablations`` apply to cases only.
    """
    path, _, function = target.partition("::")
    if Path(path).exists():
        if settings or ablations:
            option = "--set" if settings else "--ablate"
            raise SpecError(
                f"{option} applies to a single case", where=target, fix="edit the recipe"
            )
        raw = [plan for f in _files(Path(path)) for plan in _recipes(f, site, function or None)]
    else:
        raw = [case_plan(target, site, settings, ablations)]
    unique = {p.hash: p for p in (options.normalise(plan, catalogue) for plan in raw)}
    return list(unique.values())


def case_plan(
    name: str, site: Site, settings: dict[str, Json], ablations: Sequence[Ablation] = ()
) -> Plan:
    """A ladder of one case, ``ddp/decoder-tiny/weak``, over the site's worlds."""
    head, _, tail = name.rpartition("/")
    mode = Mode.WEAK
    if tail in set(Mode):
        name, mode = head, Mode(tail)
    fields, knobs = {}, {}
    for key, value in settings.items():
        if "." in key:
            knobs[key] = value
        elif key in SETTABLE:
            fields[key] = value
        else:
            raise SpecError(
                f"--set {key}: no such field",
                expected=f"{', '.join(SETTABLE)}, or file.knob",
                fix="scaleproof list",
            )
    doc = to_doc(site.case(name, mode, knobs=knobs))
    try:
        case = from_doc(CaseSpec, {**doc, **fields}, "--set")
    except ValueError as error:
        raise SpecError(str(error), fix="scaleproof list") from None
    worlds: Sequence[int] = site.worlds
    if mode is Mode.STRONG:
        if case.global_batch is None:
            raise SpecError(
                "strong mode needs a global batch",
                where=name,
                expected="--set global_batch=N",
                fix=f"scaleproof run {name}/strong --set global_batch=16",
            )
        worlds = strong_worlds(case, worlds)
    baselines = ("plain",) if case.strategy == "single" else ("plain", "wrapped")
    if case.shares:
        baselines = ("sum_of_devices",)
    if case.strategy == "single":
        worlds = (1,)
    protocol = PACED if case.model == "paced" else REAL
    return ladder(
        case,
        worlds,
        baselines=baselines,
        metrics=metrics_of(case.strategy),
        protocol=protocol,
        shape=site.shape,
        ablations=ablations,
    )


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("test_*.py")) if path.is_dir() else [path]


def _recipes(path: Path, site: Site, function: str | None) -> list[Plan]:
    """The plans of a suite's marked functions, or of one recipe function of a file."""
    module = _import(path)
    if function is not None:
        recipe = getattr(module, function, None)
        if recipe is None:
            raise SpecError(f"no function {function!r}", where=str(path), fix=f"grep '^def' {path}")
        recipes = getattr(recipe, MARK, (recipe,))
    else:
        recipes = tuple(r for f in vars(module).values() for r in getattr(f, MARK, ()))
    return [plan for recipe in recipes for plan in _call(recipe, site, path)]


def _call(recipe: Recipe, site: Site, path: Path) -> Sequence[Plan]:
    """A recipe's plans, or one clear error when it is something else."""
    found = recipe(site) if callable(recipe) else None
    if not isinstance(found, list | tuple) or not all(isinstance(p, Plan) for p in found):
        raise SpecError(
            f"{getattr(recipe, '__name__', recipe)!r} is no recipe: it does not return plans",
            where=str(path),
            expected="a function of the site that returns a list of plans",
            fix="scaleproof list suites",
        )
    return found


def _import(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


def outlook(
    plan: Plan, described: dict[str, Described], thresholds: Sequence[Threshold]
) -> Outlook:
    """What a plan will do, with the rules that will judge it."""
    hardware = machines.detect().hardware_class
    judged = contrasts.of(plan, thresholds, hardware)
    rules: dict[str, list[str]] = {a.name: [] for a in plan.arms}
    for c in judged:
        matched = verdict.rules_for(thresholds, plan.arm(c.subject).case, c, hardware)
        rules[c.subject] += [t.name for t in matched if t.name not in rules[c.subject]]
    return Outlook(
        plan=plan,
        described={a.case.hash: described[a.case.hash] for a in plan.arms},
        rules=rules,
        num_launches=2 * plan.protocol.min_blocks * len(plan.arms),
    )


def estimate_s(found: Outlook) -> float:
    """Rough seconds for the plan's first blocks: closed-form FLOPs at a core's usual rate.

    Paced models state their own step time; on a GPU the rate is a guess and the figure is too.
    """
    total = 0.0
    protocol = found.plan.protocol
    for arm in found.plan.arms:
        facts = found.described[arm.case.hash].facts
        expected = found.described[arm.case.hash].expected
        if facts is None or expected is None:
            continue
        rate = 3e10 if arm.case.device == "cpu" else 2e14
        step_s = facts.flops_per_sample * expected.global_batch / arm.case.world_size / rate
        if arm.case.model == "paced":
            step_s = float(arm.case.knob("paced.step_ms", 40.0)) / 1e3 * 1.2
        total += 2 * protocol.min_blocks * (LAUNCH_S + protocol.steps * max(step_s, 2e-3)) + GATE_S
    return total


def lines(found: Sequence[Outlook], machine: Machine) -> list[str]:
    """The table of ``plan``."""
    columns = [
        text.Column(header="case", keep=9, left=True),
        text.Column(header="ranks", keep=9),
        text.Column(header="params", keep=4),
        text.Column(header="batch", keep=5),
        text.Column(header="GFLOP/step", keep=3),
        text.Column(header="memory", keep=6),
        text.Column(header="sends/step", keep=7),
        text.Column(header="rules", keep=8, left=True),
    ]
    rows = []
    for f in found:
        for arm in f.plan.arms:
            d = f.described[arm.case.hash]
            if d.facts is None or d.expected is None:
                skipped = f"ERROR: {d.error}" if d.error else f"SKIP: {d.unsupported}"
                rows.append([arm.case.family, arm.case.world, "", "", "", "", "", skipped])
                continue
            flops = d.facts.flops_per_sample * d.expected.global_batch / arm.case.world_size
            rows.append(
                [
                    arm.case.family,
                    arm.case.world,
                    si(float(d.facts.num_params)),
                    str(d.expected.global_batch),
                    f"{flops / 1e9:.3g}",
                    si(float(d.expected.memory_bytes), "B"),
                    si(max(d.expected.sent_bytes), "B"),
                    ", ".join(f.rules[arm.name])
                    if obstacles.fits(d, arm.case, machine)
                    else "SKIP: does not fit",
                ]
            )
        extras = f.plan.arms[-1].case.extras.split("+")[1:] if f.plan.arms else []
        rows += [[f"  +{extra}", *[""] * (len(columns) - 1)] for extra in extras]
    launches = sum(f.num_launches for f in found)
    seconds = sum(estimate_s(f) for f in found)
    return [
        *(text.table(columns, rows, text.columns()) if rows else [" nothing to launch here"]),
        "",
        f" {len(found)} plans, at least {launches} timed launches, about {duration(seconds)};"
        f" memory and bytes are per rank, in closed form",
    ]
