"""``pytest suites/ --gpus 8``: one item per verdict, measured once per plan.

The plugin does nothing in a session that collects no ``@scaling`` function. Its long options are
always there; the short ones are registered last, and only where no other project took the name.
"""

import argparse
import contextlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging import pairs, verdicts
from harness.base.errors import Exit, ScaleproofError, SpecError
from harness.base.numbers import duration
from harness.interface import options
from harness.interface.plugin import benchmark
from harness.interface.plugin.session import Expectation, Scaling, option
from harness.interface.report import tables, text
from harness.measure.measurer import left_s
from harness.record import Status, Verdict
from harness.record.outcome import exit_status
from harness.spec import Catalogue, Contrast, Course, Site, Threshold, targets
from harness.spec.suite import MARK, RECOVERS

_CATEGORY = {
    Status.PASS: ("passed", ".", "PASSED"),
    Status.FAIL: ("failed", "F", "FAILED"),
    Status.INCONCLUSIVE: ("inconclusive", "?", ("INCONCLUSIVE", {"yellow": True})),
    Status.RECORDED: ("recorded", "r", ("RECORDED", {"cyan": True})),
    Status.ERROR: ("error", "E", "ERROR"),
    Status.SKIP: ("skipped", "s", "SKIPPED"),
}


#: Tiers of suites, as markers: ``pytest suites/ -m nightly``.
TIERS = (
    "smoke: suites that finish in minutes on a laptop",
    "nightly: suites that take longer and run every night",
    "acceptance: suites that measure published claims",
)

KEY = pytest.StashKey[Scaling]()
VERDICT = pytest.StashKey[Verdict]()
OWN_FAILURE = pytest.StashKey[bool]()
USAGE = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scaling", "scaleproof: measuring and judging how training scales")
    for o in options.OPTIONS:
        group.addoption(f"--scaling-{o.name}", help=o.help, **o.kwargs)
    group.addoption(
        "--scaling-inconclusive",
        choices=("fail", "warn"),
        default="fail",
        help="whether an INCONCLUSIVE verdict fails the run (default: fail)",
    )
    group.addoption(
        "--scaling-benchmark",
        action="store_true",
        help="also show measured launches in pytest-benchmark's table and files",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, None, None]:
    """The short options, after every plugin and conftest had its chance at the names."""
    yield
    group = parser.getgroup("scaling")
    for o in options.OPTIONS:
        dest = f"scaleproof_short_{o.name.replace('-', '_')}"
        try:
            group.addoption(
                f"--{o.name}", dest=dest, help=f"short for --scaling-{o.name}", **o.kwargs
            )
        except (ValueError, argparse.ArgumentError):
            continue  # another project's: ours is --scaling-NAME there


def pytest_configure(config: pytest.Config) -> None:
    """Options that were given are checked before anything is collected."""
    config.stash[USAGE] = []
    for tier in TIERS:
        config.addinivalue_line("markers", tier)
    if any(option(config, o.name) != o.kwargs.get("default") for o in options.OPTIONS):
        try:
            _site(config)
        except ScaleproofError as error:
            raise pytest.UsageError(str(error)) from None


def _site(config: pytest.Config) -> tuple[Catalogue, Site]:
    """What can be named, and what may be used."""
    known = options.catalogue(option(config, "path"))
    options.seconds(option(config, "time-budget"))
    return known, options.site({o.name: option(config, o.name) for o in options.OPTIONS}, known)


def _scaling(config: pytest.Config) -> Scaling:
    """The session's state, made when the first ``@scaling`` function is seen."""
    if KEY not in config.stash:
        spread = hasattr(config, "workerinput")  # a worker of pytest-xdist
        if spread or any(getattr(config.option, o, None) for o in ("numprocesses", "forked")):
            raise SpecError(
                "scaling suites cannot run in parallel: ranks need the whole machine",
                expected="scaling suites without -n and --forked", fix="pytest suites/ -p no:xdist",
            )  # fmt: skip
        config.stash[KEY] = Scaling(config, *_site(config))
    return config.stash[KEY]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per verdict, or per course of a recovery."""
    recipes = getattr(metafunc.function, MARK, None)
    if recipes is None:
        _generate_courses(metafunc)
        return
    folder = Path(metafunc.module.__file__ or ".").parent
    expectations: list[Expectation] = []
    with _told_as_usage(metafunc.config):
        scaling = _scaling(metafunc.config)
        rules = scaling.thresholds(folder)
        hardware = scaling.start().run.machine.hardware_class
        for recipe in recipes:
            for raw in recipe(scaling.site):
                plan = targets.normalise(raw, scaling.catalogue)
                scaling.plans.setdefault(plan.hash, plan)
                for contrast in pairs.judged_of(plan, rules, hardware):
                    case = plan.arm(contrast.subject).case
                    matched = verdicts.rules_for(rules, case, contrast, hardware)
                    every: list[Threshold | None] = [*matched] or [None]
                    expectations += [Expectation(plan, contrast, rule) for rule in every]
    ids = [e.id for e in expectations]
    several = {i for i in ids if ids.count(i) > 1}
    names = [f"{e.id}-{e.rule.name}" if e.id in several and e.rule else e.id for e in expectations]
    metafunc.parametrize("verdict", expectations, ids=names, indirect=True)


@contextlib.contextmanager
def _told_as_usage(config: pytest.Config) -> Generator[None, None, None]:
    """What is wrong with a suite ends the session as a mistake in its use."""
    try:
        yield
    except ScaleproofError as error:
        config.stash[USAGE].append(str(error))
        raise pytest.Collector.CollectError(str(error)) from None


def _generate_courses(metafunc: pytest.Metafunc) -> None:
    courses: list[Course] = []
    for recipe in getattr(metafunc.function, RECOVERS, ()):
        with _told_as_usage(metafunc.config):
            scaling = _scaling(metafunc.config)
            scaling.thresholds(Path(metafunc.module.__file__ or ".").parent)
            for raw in recipe(scaling.site):
                courses.append(replace(raw, case=scaling.catalogue.normalise(raw.case)))
    if hasattr(metafunc.function, RECOVERS):
        ids = [c.name.replace(" ", "-").replace("/", "-") for c in courses]
        metafunc.parametrize("verdict", courses, ids=ids, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what was asked for and the baselines it needs; nothing else is launched."""
    if KEY not in config.stash:
        return
    scaling = config.stash[KEY]
    wanted: dict[str, set[Contrast]] = {}
    ours = [(item, e) for item in items if (e := _expectation(item)) is not None]
    for item, e in ours:
        if isinstance(e, Expectation):
            wanted.setdefault(e.plan.hash, set()).add(e.contrast)
        if config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(0))  # a plan is measured inside one item
    scaling.selected = {h: scaling.plans[h].only(contrasts) for h, contrasts in wanted.items()}
    if ours and not config.option.collectonly:
        scaling.start().run.judge_by(scaling.all_rules())
        scaling.start().run.announce(list(scaling.selected.values()))
        scaling.start().warm()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """What will be measured, before it is."""
    if KEY not in config.stash or not config.stash[KEY].selected:
        return []
    scaling = config.stash[KEY]
    site = scaling.site
    launches = sum(2 * p.protocol.min_blocks * len(p.arms) for p in scaling.selected.values())
    unit = "GPU" if site.device == "cuda" else "CPU"
    lines = [
        f"scaling: {len(scaling.selected)} plans, at least {launches} launches{_takes(scaling)},"
        f" up to {site.world_size} {unit} ranks over {site.backend}, engine {site.engine}"
    ]
    if config.pluginmanager.hasplugin("timeout") and getattr(config.option, "timeout", None):
        lines.append(
            "scaling: --timeout does not apply to scaling items; launches have their own deadlines"
        )
    return lines


def _takes(scaling: Scaling) -> str:
    """How long the run will take, where an agent can say what its cases are."""
    if scaling.config.option.collectonly:
        return ""
    session, plans = scaling.start(), list(scaling.selected.values())
    if session.engine.engine.queues:  # nobody waits in a queue for a forecast
        return ""
    try:
        session.describe([arm.case for plan in plans for arm in plan.arms])
    except ScaleproofError:  # the first item says why
        return ""
    return f", about {duration(left_s(session, plans, {}))}"


def _expectation(item: pytest.Item) -> Expectation | Course | None:
    callspec = getattr(item, "callspec", None)
    param = callspec.params.get("verdict") if callspec is not None else None
    return param if isinstance(param, Expectation | Course) else None


@pytest.fixture(name="verdict")
def _verdict(request: pytest.FixtureRequest) -> Verdict:
    """The verdict of this item; measures its plan (or course) if nobody has yet."""
    expected = getattr(request, "param", None)
    if not isinstance(expected, Expectation | Course):
        pytest.fail(
            "only functions marked with @scaling or @recovering can use the fixture 'verdict'",
            pytrace=False,
        )
    scaling = request.config.stash[KEY]
    session = scaling.start()
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            try:
                if isinstance(expected, Course):
                    answer = scaling.recovered(expected)
                else:
                    answer = scaling.judged(expected)
            finally:
                session.progress.clear()
    except ScaleproofError as error:
        pytest.fail(str(error), pytrace=False)
    except KeyboardInterrupt:
        scaling.interrupted = True
        raise
    request.node.stash[VERDICT] = answer
    if isinstance(expected, Expectation):
        launches = [
            x for x in session.run.launches if x.plan == scaling.selected[expected.plan.hash].hash
        ]
        benchmark.show(request, expected.plan.name, expected.contrast.subject, answer, launches)
    return answer


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """The verdict decides, whatever the body does; without a value the body is not run."""
    verdict = pyfuncitem.stash.get(VERDICT, None)
    if verdict is not None and verdict.value is None:
        _enforce(pyfuncitem, verdict)
    try:
        result = yield
    except Exception:
        pyfuncitem.stash[OWN_FAILURE] = True
        raise
    if verdict is not None:
        _enforce(pyfuncitem, verdict)
    return result


def _enforce(item: pytest.Item, verdict: Verdict) -> None:
    """Fail or skip the item as its verdict says."""
    if verdict.status is Status.SKIP:
        pytest.skip(verdict.detail)
    warn = item.config.option.scaling_inconclusive == "warn"
    soft = verdict.status is Status.INCONCLUSIVE and warn
    if verdict.counts in (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE) and not soft:
        lines = text.wrap(f"{verdict.case} {verdict.metric}: {verdict.detail}", 96, 2)
        pytest.fail("\n".join([f"{verdict.status} ({verdict.reason})", *lines]), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Carry the verdict's status to the report, for its letter and for JUnit."""
    report = yield
    verdict = item.stash.get(VERDICT, None)
    if KEY not in item.config.stash:
        return report
    scaling = item.config.stash[KEY]
    own_failure = item.stash.get(OWN_FAILURE, False) or _expectation(item) is None
    if own_failure:
        scaling.foreign_failures += report.failed
    elif verdict is not None and report.when == "call":
        report.scaling = verdict.counts  # type: ignore[attr-defined]
        report.user_properties.append(("scaling_status", str(verdict.status)))
        if verdict.value is not None:
            report.user_properties.append(("scaling_value", repr(verdict.value)))
            report.user_properties.append(("scaling_interval", f"[{verdict.low}, {verdict.high}]"))
    elif report.failed:
        scaling.statuses[item.nodeid] = Status.ERROR
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, Any] | None:
    """``?`` for INCONCLUSIVE, ``r`` for RECORDED, ``E`` for ERROR."""
    status = getattr(report, "scaling", None)
    return _CATEGORY[status] if status is not None and report.when == "call" else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the record down and fold the verdicts into the exit status."""
    if session.config.stash.get(USAGE, None):
        session.exitstatus = Exit.USAGE
    if KEY not in session.config.stash:
        return
    scaling = session.config.stash[KEY]
    measurer, ours = scaling.measurer, scaling.session
    if session.config.option.collectonly or measurer is None or ours is None:
        return
    stopped = exitstatus == pytest.ExitCode.INTERRUPTED or scaling.interrupted
    try:
        if ours.run.plans or ours.run.recoveries:
            whole = not (stopped or measurer.waiting)
            scaling.record = ours.save(complete=whole)
    finally:
        ours.close()
    if session.exitstatus not in (0, 1, 5):
        return
    statuses = list(scaling.statuses.values())
    statuses += [v.counts for v in measurer.judged]
    if scaling.foreign_failures:
        statuses.append(Status.FAIL)
    fails = session.config.option.scaling_inconclusive == "fail"
    session.exitstatus = exit_status(statuses, inconclusive_fails=fails)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if KEY not in config.stash:
        return
    scaling = config.stash[KEY]
    if scaling.record is None or scaling.session is None:
        return
    width = min(140, max(80, terminalreporter._tw.fullwidth))
    folder = text.shown(scaling.session.run.folder)
    lines = tables.summary(scaling.record, folder, scaling.rerun, width)
    color = terminalreporter._tw.hasmarkup
    terminalreporter.write_line("")
    for line in lines:
        terminalreporter.write_line(text.paint(line) if color else line)
