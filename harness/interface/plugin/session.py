"""The state of one pytest session, its pytest-benchmark table and its untested claims."""

from __future__ import annotations

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

_SHOWN = pytest.StashKey[set[tuple[str, str]]]()
_NOW = 0.0


def launch_clock() -> float:
    """The virtual clock. A function of this module, so that its name in the JSON is stable."""
    return _NOW


def wanted(config: pytest.Config) -> bool:
    """Whether the user asked for it, or for one of pytest-benchmark's files."""
    files = ("json", "save", "autosave", "compare")
    asked = any(getattr(config.option, f"benchmark_{name}", None) for name in files)
    return config.pluginmanager.hasplugin("benchmark") and (
        asked or bool(config.option.scaling_benchmark)
    )


def show(
    request: pytest.FixtureRequest,
    plan: str,
    arm: str,
    verdict: Verdict,
    launches: Sequence[LaunchRecord],
) -> None:
    """One row for a plan's arm: the median step of each of its launches; once a session."""
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


#: What a recovery is judged by: no plan, but a course.
RECOVERY = ("recovery_s", "lost_work")


def untested(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> Iterator[tuple[Threshold, str]]:
    """Claims among the rules whose names are not ``judged``, and why each is not.

    ``recovers``: whether recoveries are measured, which every rule of theirs judges.
    """
    for rule in rules:
        if rule.source is not BoundSource.PUBLISHED or rule.name in judged:
            continue
        if rule.metric in RECOVERY and recovers:
            continue
        yield rule, why(rule, site)


def why(rule: Threshold, site: Site) -> str:
    """Says what a rule needs that this run has not."""
    if rule.device not in (None, site.device):
        return "needs GPUs" if rule.device is Device.CUDA else "is about CPU ranks"
    if rule.nodes and len(site.nodes) < min(rule.nodes):
        return f"needs {min(rule.nodes)} nodes, here {_count(len(site.nodes), 'node')}"
    if rule.world and site.world_size < min(rule.world):
        return f"needs {min(rule.world)} ranks, here {_count(site.world_size, 'rank')}"
    if rule.metric in RECOVERY:
        return "no recovery was selected (suites/test_recovery.py)"
    return f"nothing that was selected measures {rule.metric} of {rule.case}"


def _count(number: int, word: str) -> str:
    return f"is one {word}" if number == 1 else f"are {number}"


def lines(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> list[str]:
    """One line a claim, claims with the same reason together."""
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


#: From harmless to worst.
_WORSE = (
    Status.SKIP, Status.RECORDED, Status.PASS, Status.INCONCLUSIVE, Status.FAIL, Status.ERROR,
)  # fmt: skip


@dataclass(frozen=True)
class Expectation:
    """One item: a contrast of a plan, under one rule or none.

    ``required`` are the rules of its function, which hold where the function is selected.
    """

    plan: Plan
    contrast: Contrast
    rule: Threshold | None
    required: tuple[Threshold, ...] = ()

    def __str__(self) -> str:
        """As other tools' files tell it (pytest-benchmark's ``params``)."""
        return self.id

    @property
    def id(self) -> str:
        """``ddp-decoder_tiny-weak-4cpu-efficiency``, with the baseline unless it is plain."""
        case = self.plan.arm(self.contrast.subject).case
        against = (
            ""
            if self.contrast.against in ("plain", "gate", "nothing")
            else f"-{self.contrast.against}"
        )
        return f"{case.pytest_id}-{self.contrast.metric}{against}"


@dataclass
class Scaling:
    """One session's options, its plans, and the Measurer once something is measured."""

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
    claims: bool = False  # whether published claims were asked for
    untested: list[str] = field(default_factory=list)
    interrupted: bool = False
    record: RunRecord | None = None
    unwritten: UnwrittenError | None = None

    def thresholds(self, folder: Path) -> tuple[Threshold, ...]:
        """The rules that hold for suites of a folder."""
        if folder not in self.rules:
            file = option(self.config, "thresholds")
            expected = option(self.config, "references")
            self.rules[folder] = options.thresholds(file, [folder], self.catalogue, expected)
        return self.rules[folder]

    def all_rules(self) -> tuple[Threshold, ...]:
        """The rules of every suite folder, and of the functions that are selected: each judges
        whatever it matches.
        """
        of_folders = (rule for rules in self.rules.values() for rule in rules)
        return tuple(dict.fromkeys((*of_folders, *self.required)))

    def start(self) -> Session:
        """The one session of this program, and its Measurer."""
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
        """The worst verdict on a course, which is measured if nobody has yet."""
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
            pytest.skip(f"no rule applies to {course.name}")
        return max(verdicts, key=lambda verdict: _WORSE.index(verdict.counts))

    def judged(self, expectation: Expectation) -> Verdict:
        """The verdict that was expected; its plan is measured if nobody has yet.

        With -x a plan is measured when its first item comes, else all of them at once: then the
        time goes to whatever is most undecided.
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
        # Another folder's rule may judge a contrast that has none in its own.
        return next((verdict for verdict in verdicts if verdict.rule == rule), verdicts[0])

    @property
    def rerun(self) -> str:
        """The command that does this run again."""
        return again(["pytest", *map(str, self.config.invocation_params.args)])


def _recoverer(session: Session) -> Any:
    """The recoverer of the feature that interrupts trainings; SpecError where it was taken out."""
    for module in heads.modules("COURSES"):
        return module.Recoverer(session)
    raise SpecError("nothing here interrupts trainings", fix="pytest -k 'not recover'")


def option(config: pytest.Config, name: str) -> Any:
    """An option's value: short spelling, else long, else SCALEPROOF_NAME, else default."""
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
