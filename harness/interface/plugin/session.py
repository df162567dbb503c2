"""The state of one pytest session, its pytest-benchmark table and its untested claims."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging.verdicts import of_series
from harness.base.errors import SpecError
from harness.base.files import UnwrittenError
from harness.cases import (
    BoundSource,
    Catalogue,
    Contrast,
    Device,
    FaultScenario,
    Plan,
    Site,
    Threshold,
    heads,
)
from harness.interface import options
from harness.interface.offered import OPTIONS, again, from_environment
from harness.interface.report.heartbeat import watched
from harness.interface.report.live import Live
from harness.measure.confirming import USUAL
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY

_SHOWN = pytest.StashKey[set[tuple[str, str]]]()
_NOW = 0.0


def launch_clock() -> float:
    """Return the virtual time in s that pytest-benchmark reads.

    It is a function of this module so that its name in pytest-benchmark's JSON is stable.
    """
    return _NOW


def wanted(config: pytest.Config) -> bool:
    """Return whether the user requested the benchmark table or a file of pytest-benchmark."""
    files = ("json", "save", "autosave", "compare")
    asked = any(getattr(config.option, f"benchmark_{name}", None) for name in files)
    return config.pluginmanager.hasplugin("benchmark") and (
        asked or bool(config.option.scaling_benchmark)
    )


def save_none(config: pytest.Config) -> None:
    """Write the file of ``--benchmark-json`` if nothing was timed.

    pytest-benchmark would write no file then, and a pipeline would read the one of an earlier run.
    """
    path: Path | None = getattr(config.option, "benchmark_json", None)
    timed = getattr(getattr(config, "_benchmarksession", None), "benchmarks", None)
    if path is None or timed is None or timed:
        return
    hook = config.hook
    document = hook.pytest_benchmark_generate_json(
        config=config,
        benchmarks=[],
        include_data=True,
        machine_info=hook.pytest_benchmark_generate_machine_info(config=config),
        commit_info=hook.pytest_benchmark_generate_commit_info(config=config),
    )
    path.write_text(json.dumps(document, indent=4), encoding="utf-8")


def show(
    request: pytest.FixtureRequest,
    plan: str,
    arm: str,
    verdict: Verdict,
    launches: Sequence[LaunchRecord],
) -> None:
    """Add a row for a plan's arm with the median step of each of its launches, once a session."""
    if not wanted(request.config):
        return
    shown = request.config.stash.setdefault(_SHOWN, set())
    timed = [x for x in launches if x.arm == arm and x.purpose is Purpose.TIMED and x.usable]
    medians = [x.steps.median_s for x in timed if x.steps is not None]
    if not medians or (plan, arm) in shown:
        return
    shown.add((plan, arm))
    request.node.add_marker(pytest.mark.benchmark(timer=launch_clock, group=plan))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.extra_info.update(
        case=verdict.case,
        contrast=verdict.contrast,
        status=str(verdict.status),
        value=verdict.value,
        low=verdict.low,
        high=verdict.high,
        mde=verdict.mde,
    )
    values = iter(medians)

    def launch() -> None:
        global _NOW
        _NOW += next(values, 0.0)

    benchmark.pedantic(launch, rounds=len(medians), iterations=1)


#: Metrics of fault scenarios, which are measured outside of plans.
RECOVERY = ("recovery_s", "lost_work")


def untested(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> Iterator[tuple[Threshold, str]]:
    """Yield the published claims that are not ``judged`` in this session, and why.

    ``recovers`` says whether recoveries are measured. If they are, every threshold on recoveries is
    tested.
    """
    for rule in rules:
        if rule.source is not BoundSource.PUBLISHED or rule.name in judged:
            continue
        if rule.metric in RECOVERY and recovers:
            continue
        yield rule, why(rule, site)


def why(rule: Threshold, site: Site) -> str:
    """Return what a threshold needs that this session lacks."""
    if rule.device not in (None, site.device):
        return "needs GPUs" if rule.device is Device.CUDA else "applies to CPU ranks"
    if rule.nodes and len(site.nodes) < min(rule.nodes):
        return f"needs {min(rule.nodes)} nodes, here {_count(len(site.nodes), 'node')}"
    if rule.world and site.world_size < min(rule.world):
        return f"needs {min(rule.world)} ranks, here {_count(site.world_size, 'rank')}"
    if rule.metric in RECOVERY:
        return "no recovery was selected (suites/test_recovery.py)"
    return f"no selected item measures {rule.metric} of {rule.case}"


def _count(number: int, word: str) -> str:
    return f"is one {word}" if number == 1 else f"are {number}"


def lines(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> list[str]:
    """Return a line for each untested claim, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for rule, reason in untested(rules, judged, site, recovers=recovers):
        by_reason.setdefault(reason, []).append(f"{rule.name} ({rule.bound})")
    if not by_reason:
        return []
    total = sum(map(len, by_reason.values()))
    shown = [f"scaling: {total} published claims are not tested here:"]
    for reason, names in by_reason.items():
        shown.append(f"  {reason}:")
        shown += [f"    {name}" for name in names]
    return shown


@dataclass(frozen=True)
class Expectation:
    """One item: a contrast of a plan under one threshold or none.

    ``required`` are the thresholds of its function, which apply if the function is selected.
    """

    plan: Plan
    contrast: Contrast
    rule: Threshold | None
    required: tuple[Threshold, ...] = ()

    def __str__(self) -> str:
        """Return the id, which pytest-benchmark writes to its files as ``params``."""
        return self.id

    @property
    def id(self) -> str:
        """Return the id of the item, for example ``ddp-decoder_tiny-weak-4cpu-efficiency``.

        It ends with the kind of baseline unless that is plain.
        """
        case = self.plan.arm(self.contrast.subject).case
        against = (
            ""
            if self.contrast.against in ("plain", "gate", "nothing")
            else f"-{self.contrast.against}"
        )
        return f"{case.pytest_id}-{self.contrast.metric}{against}"


@dataclass
class Scaling:
    """The state of one pytest session: options, plans, and the Measurer once it has started."""

    config: pytest.Config
    catalogue: Catalogue
    site: Site
    plans: dict[str, Plan] = field(default_factory=dict)
    selected: dict[str, Plan] = field(default_factory=dict)
    rules: dict[Path, tuple[Threshold, ...]] = field(default_factory=dict)
    required: tuple[Threshold, ...] = ()
    session: Session | None = None
    measurer: Measurer | None = None
    recoverer: Any = None
    statuses: dict[str, Status] = field(default_factory=dict)
    foreign_failures: int = 0
    claims: bool = False  # whether items marked ``acceptance`` were selected
    untested: list[str] = field(default_factory=list)
    interrupted: bool = False
    record: RunRecord | None = None
    unwritten: UnwrittenError | None = None

    def thresholds(self, folder: Path) -> tuple[Threshold, ...]:
        """Return the thresholds that apply to suites of a folder."""
        if folder not in self.rules:
            file = option(self.config, "thresholds")
            expected = option(self.config, "references")
            self.rules[folder] = options.thresholds(file, [folder], self.catalogue, expected)
        return self.rules[folder]

    def all_rules(self) -> tuple[Threshold, ...]:
        """Return the thresholds of all suite folders and of the selected functions.

        Each applies to everything that it matches.
        """
        of_folders = (rule for rules in self.rules.values() for rule in rules)
        return tuple(dict.fromkeys((*of_folders, *self.required)))

    def start(self) -> Session:
        """Return the session, and create it with its Measurer at the first call."""
        if self.session is None:
            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            writer = reporter._tw
            live: Progress = Live(
                writer._file,
                quiet=self.config.option.verbose < 0,
                column=lambda: writer.width_of_current_line,
            )
            values = {o.name: option(self.config, o.name) for o in OPTIONS}
            live = watched(live, values["heartbeat"] or "")
            argv = ("pytest", *map(str, self.config.invocation_params.args))
            results = Path(values["results"] or self.config.rootpath / "results")
            settings = options.settings(values, self.site, argv)
            self.session = Session(self.catalogue, settings, results, (), live)
            self.measurer = Measurer(self.session)
            if not self.config.option.collectonly:
                self.session.meet()
        return self.session

    def recovered(self, course: FaultScenario) -> Verdict:
        """Return the worst verdict on a fault scenario, which is measured at the first call."""
        session = self.start()
        session.warm()
        if self.recoverer is None:
            self.recoverer = _recoverer(session)
        if all(recovery.name != course.name for recovery in session.run.recoveries):
            self.recoverer.measure(course, USUAL)
        verdicts = [
            series for series in of_series(session.run.bare()) if series.case == course.name
        ]
        if not verdicts:
            pytest.skip(f"no threshold applies to {course.name}")
        return min(verdicts, key=lambda verdict: SEVERITY.index(verdict.counts))

    def judged(self, expectation: Expectation) -> Verdict:
        """Return the verdict of an item, and measure its plan if necessary.

        With ``-x`` each plan is measured for its first item. Otherwise all plans are measured
        together, so that the time goes to the most undecided ones.
        """
        self.start()
        measurer = self.measurer
        selected = self.selected[expectation.plan.hash]
        assert measurer is not None
        stops = bool(self.config.option.maxfail)
        measurer.measure([selected] if stops else list(self.selected.values()))
        rule = expectation.rule.name if expectation.rule else None
        verdicts = [
            verdict
            for verdict in measurer.verdicts(selected)
            if verdict.contrast == expectation.contrast.name
        ]
        # If no threshold of this folder judges the contrast, one of another folder may.
        return next((verdict for verdict in verdicts if verdict.rule == rule), verdicts[0])

    @property
    def rerun(self) -> str:
        """Return the command that repeats this run."""
        return again(["pytest", *map(str, self.config.invocation_params.args)])


def _recoverer(session: Session) -> Any:
    """Return the recoverer of the feature that injects faults.

    Raise SpecError if the feature is not installed.
    """
    for module in heads.modules("COURSES"):
        return module.Recoverer(session)
    raise SpecError(
        "the feature that injects faults is not installed", fix="pytest -k 'not recover'"
    )


def option(config: pytest.Config, name: str) -> Any:
    """Return an option's value: short spelling, else long, else SCALEPROOF_NAME, else default."""
    dest = name.replace("-", "_")
    known = next(o for o in OPTIONS if o.name == name)
    default = known.kwargs.get("default")
    for key in (f"scaleproof_short_{dest}", f"scaling_{dest}"):
        value = getattr(config.option, key, None)
        if value is not None and value != default:
            return value
    try:
        return from_environment(known)
    except SpecError as error:
        raise pytest.UsageError(str(error)) from None
