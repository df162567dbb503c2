"""The items of suites: one for each verdict, while each plan is measured once."""

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging import contrast_data, verdicts
from harness.base import host_errors
from harness.base.errors import Exit, ScaleproofError, SpecError
from harness.base.files import UnwrittenError
from harness.base.formatting import duration
from harness.base.programs import BOUNDS, MARK, RECOVERS
from harness.cases import Catalogue, Contrast, FaultScenario, Plan, Site, Threshold, targets
from harness.interface import options
from harness.interface.offered import OPTIONS, refuse_unknown_variables
from harness.interface.plugin import hooks, session as benchmark, session as claims
from harness.interface.plugin.session import Expectation, Scaling, option
from harness.interface.report import screen, text
from harness.measure.measurer import left_s
from harness.measure.session import Session
from harness.record import Status, Verdict
from harness.record.outcome import exit_status

_CATEGORY = {
    Status.PASS: ("passed", ".", "PASSED"),
    Status.FAIL: ("failed", "F", "FAILED"),
    Status.INCONCLUSIVE: ("inconclusive", "?", ("INCONCLUSIVE", {"yellow": True})),
    Status.RECORDED: ("recorded", "r", ("RECORDED", {"cyan": True})),
    Status.NOT_COMPARABLE: ("not comparable", "n", ("NOT COMPARABLE", {"yellow": True})),
    Status.ERROR: ("error", "E", "ERROR"),
    Status.SKIP: ("skipped", "s", "SKIPPED"),
}


KEY = pytest.StashKey[Scaling]()
VERDICT = pytest.StashKey[Verdict]()
OWN_FAILURE = pytest.StashKey[bool]()
USAGE = pytest.StashKey[list[str]]()


def site_of(config: pytest.Config) -> tuple[Catalogue, Site]:
    """Return the catalogue of names and the site of a session."""
    refuse_unknown_variables()
    catalogue = options.catalogue(option(config, "path"))
    options.seconds(option(config, "time-budget"))
    return catalogue, options.site({o.name: option(config, o.name) for o in OPTIONS}, catalogue)


def _scaling(config: pytest.Config) -> Scaling:
    """Return the session's state, which is created at the first ``@scaling`` function."""
    if KEY not in config.stash:
        spread = hasattr(config, "workerinput")  # a worker of pytest-xdist
        if spread:
            getattr(config, "workeroutput")[hooks.PARALLEL] = True  # noqa: B009
        if spread or any(getattr(config.option, o, None) for o in ("numprocesses", "forked")):
            raise SpecError(
                "scaling suites cannot run in parallel, because ranks need the whole machine",
                expected="scaling suites without -n and --forked",
                fix="pytest suites/ -p no:xdist",
            )
        config.stash[KEY] = Scaling(config, *site_of(config))
    return config.stash[KEY]


def generate(metafunc: pytest.Metafunc) -> None:
    """Create an item for each verdict, or for each fault scenario."""
    recipes = getattr(metafunc.function, MARK, None)
    if recipes is None:
        _generate_courses(metafunc)
        return
    folder = Path(metafunc.module.__file__ or ".").parent
    expectations: list[Expectation] = []
    with _told_as_usage(metafunc.config):
        scaling = _scaling(metafunc.config)
        of_folder = scaling.thresholds(folder)
        run = scaling.start().run
        setups = run.settings.setups
        for recipe in recipes:
            for raw in recipe(scaling.site):
                plan = targets.normalise(raw, scaling.catalogue, bool(setups))
                scaling.plans.setdefault(plan.hash, plan)
                required = _required(metafunc, plan)
                rules = (*of_folder, *required)
                for contrast in contrast_data.judged_of(plan, rules, run.machine):
                    case = plan.arm(contrast.subject).case
                    matched = verdicts.rules_for(rules, case, contrast, run.machine)
                    matching: list[Threshold | None] = [*matched] or [None]
                    expectations += [
                        Expectation(plan, contrast, threshold, required) for threshold in matching
                    ]
    ids = [expectation.id for expectation in expectations]
    several = {i for i in ids if ids.count(i) > 1}
    names = [
        f"{expectation.id}-{expectation.rule.name}"
        if expectation.id in several and expectation.rule
        else expectation.id
        for expectation in expectations
    ]
    if not expectations:
        return _skipped(metafunc, scaling.site)
    metafunc.parametrize("verdict", expectations, ids=names, indirect=True)


def _skipped(metafunc: pytest.Metafunc, site: Site) -> None:
    """Create one skipped item that says why a function has nothing to measure."""
    unit = "GPU" if site.device == "cuda" else "CPU"
    nodes = f"{len(site.nodes)} nodes with " if len(site.nodes) > 1 else ""
    reason = f"its recipes have nothing to measure on {nodes}{site.world_size} {unit} ranks"
    nothing = pytest.param(None, marks=pytest.mark.skip(reason=reason), id="nothing")
    metafunc.parametrize("verdict", [nothing], indirect=True)


def _required(metafunc: pytest.Metafunc, plan: Plan) -> tuple[Threshold, ...]:
    """Return the thresholds that the function itself requires of a plan, named by its node id."""
    bounds = getattr(metafunc.function, BOUNDS, None)
    return () if bounds is None else tuple(bounds.rules(metafunc.definition.nodeid, plan))


@contextlib.contextmanager
def _told_as_usage(config: pytest.Config) -> Generator[None, None, None]:
    """Turn an error in a suite into a usage error of the session."""
    try:
        yield
    except ScaleproofError as error:
        config.stash.setdefault(USAGE, []).append(str(error))
        raise pytest.Collector.CollectError(str(error)) from None


def _generate_courses(metafunc: pytest.Metafunc) -> None:
    courses: list[FaultScenario] = []
    for recipe in getattr(metafunc.function, RECOVERS, ()):
        with _told_as_usage(metafunc.config):
            scaling = _scaling(metafunc.config)
            scaling.thresholds(Path(metafunc.module.__file__ or ".").parent)
            for raw in recipe(scaling.site):
                courses.append(replace(raw, case=scaling.catalogue.normalise(raw.case)))
    if not courses:
        return _skipped(metafunc, _scaling(metafunc.config).site)
    ids = [course.name.replace(" ", "-").replace("/", "-") for course in courses]
    metafunc.parametrize("verdict", courses, ids=ids, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduce plans to the selected contrasts and their baselines; nothing else is launched."""
    if KEY not in config.stash:
        return
    scaling = config.stash[KEY]
    wanted: dict[str, set[Contrast]] = {}
    ours = [(item, e) for item in items if (e := _expectation(item)) is not None]
    for item, e in ours:
        _refuse_override(item)
        if isinstance(e, Expectation):
            scaling.required = tuple(dict.fromkeys((*scaling.required, *e.required)))
            wanted.setdefault(e.plan.hash, set()).add(e.contrast)
        if config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(0))  # one item measures a whole plan
    scaling.claims = any(item.get_closest_marker("acceptance") for item in items)
    judged = {e.rule.name for _, e in ours if isinstance(e, Expectation) and e.rule}
    recovers = any(isinstance(e, FaultScenario) for _, e in ours)
    rules = scaling.all_rules()
    scaling.untested = claims.lines(rules, judged, scaling.site, recovers=recovers)
    scaling.selected = {
        digest: scaling.plans[digest].only(contrasts) for digest, contrasts in wanted.items()
    }
    if ours and not config.option.collectonly:
        scaling.start().run.judge_by(scaling.all_rules())
        scaling.start().run.announce(list(scaling.selected.values()))
        scaling.start().warm()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return lines on what will be measured and which published claims will not be."""
    if KEY not in config.stash:
        return []
    scaling = config.stash[KEY]
    untested = scaling.untested if scaling.claims else []
    return [*_announced(config, scaling), *untested]


def _announced(config: pytest.Config, scaling: Scaling) -> list[str]:
    """Return lines on what will be measured and about how long it takes."""
    if not scaling.selected:
        return []
    site = scaling.site
    launches = sum(plan.num_first_launches(plan.arms) for plan in scaling.selected.values())
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
    """Return how long the run will take, or an empty string if the cases cannot be described."""
    if scaling.config.option.collectonly:
        return ""
    session = scaling.start()
    plans = list(scaling.selected.values())
    if session.engine.engine.queues:  # a description would need a job, which may wait in the queue
        return ""
    try:
        session.describe([arm.case for plan in plans for arm in plan.arms])
    except ScaleproofError:  # the first item will report the error
        return ""
    return f", about {duration(left_s(session, plans, {}))}"


def _expectation(item: pytest.Item) -> Expectation | FaultScenario | None:
    callspec = getattr(item, "callspec", None)
    param = callspec.params.get("verdict") if callspec is not None else None
    return param if isinstance(param, Expectation | FaultScenario) else None


def _refuse_override(item: pytest.Item) -> None:
    """Raise UsageError if the user's fixture is called ``verdict``, because it would hide ours."""
    defined = getattr(item, "_fixtureinfo").name2fixturedefs.get("verdict", ())  # noqa: B009
    if defined and defined[-1].func.__module__ != hooks.__name__:
        error = SpecError(
            f"{defined[-1].func.__module__} defines another fixture named verdict",
            where=item.nodeid,
            expected="the fixture of this plugin, which measures and judges",
            fix="rename that fixture",
        )
        raise pytest.UsageError(str(error))


def answer(request: pytest.FixtureRequest) -> Verdict:
    """Return the verdict of this item; measure its plan or fault scenario if necessary."""
    expected = getattr(request, "param", None)
    if not isinstance(expected, Expectation | FaultScenario):
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
                if isinstance(expected, FaultScenario):
                    recovered = scaling.recovered(expected)
                else:
                    recovered = scaling.judged(expected)
            finally:
                session.progress.clear()
    except ScaleproofError as error:
        pytest.fail(str(error), pytrace=False)
    except OSError as error:
        pytest.fail(str(host_errors.in_words(error)), pytrace=False)
    except KeyboardInterrupt:
        scaling.interrupted = True
        raise
    request.node.stash[VERDICT] = recovered
    request.node.user_properties += _properties(recovered, session)
    if isinstance(expected, Expectation):
        launches = [
            launch
            for launch in session.run.launches
            if launch.plan == scaling.selected[expected.plan.hash].hash
        ]
        benchmark.show(request, expected.plan.name, expected.contrast.subject, recovered, launches)
    return recovered


def _properties(verdict: Verdict, session: Session) -> Iterator[tuple[str, str]]:
    """Yield the non-empty properties of a verdict for JUnit's file, named ``scaling_NAME``."""
    folder = str(text.shown(session.run.folder))
    properties = {
        "status": verdict.status,
        "reason": verdict.reason,
        "metric": verdict.metric,
        "value": verdict.value,
        "low": verdict.low,
        "high": verdict.high,
        "n": verdict.n,
        "bound": verdict.bound,
        "rule": verdict.rule,
        "against": verdict.against,
        "run": folder,
        "report": f"scaleproof report {folder}",
    }
    yield from (
        (f"scaling_{key}", str(value))
        for key, value in properties.items()
        if value not in (None, "")
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Enforce the verdict after the body of the test; without a value, skip the body."""
    verdict = pyfuncitem.stash.get(VERDICT, None)
    if verdict is not None and verdict.value is None:
        _enforce(pyfuncitem, verdict)
    try:
        result = yield
    except Exception:  # any failure of the body is noted and raised again
        pyfuncitem.stash[OWN_FAILURE] = True
        raise
    if verdict is not None:
        _enforce(pyfuncitem, verdict)
    return result


def _enforce(item: pytest.Item, verdict: Verdict) -> None:
    """Fail or skip the item according to its verdict."""
    if verdict.counts is Status.SKIP:
        pytest.skip(verdict.detail)
    warn = item.config.option.scaling_inconclusive == "warn"
    soft = verdict.status is Status.INCONCLUSIVE and warn
    failing = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE, Status.NOT_COMPARABLE)
    if verdict.counts in failing and not soft:
        lines = text.wrap(f"{verdict.case} {verdict.metric}: {verdict.detail}", 96, 2)
        pytest.fail("\n".join([f"{verdict.status} ({verdict.reason})", *lines]), pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Copy the verdict's status to the report, for its letter and for JUnit.

    A mark ``xfail`` does not excuse a FAIL. A waiver in the thresholds file does; it needs a reason
    and an expiry date.
    """
    report = yield
    verdict = item.stash.get(VERDICT, None)
    if KEY not in item.config.stash:
        return report
    scaling = item.config.stash[KEY]
    expected = _expectation(item)
    if report.when == "setup" and isinstance(expected, Expectation):
        report.duration = _share_s(scaling, item, expected)
    own_failure = item.stash.get(OWN_FAILURE, False) or _expectation(item) is None
    if own_failure:
        scaling.foreign_failures += report.failed
    elif verdict is not None and report.when == "call":
        report.scaling = verdict.counts  # type: ignore[attr-defined]
        if hasattr(report, "wasxfail") and report.skipped:
            del report.wasxfail
            report.outcome = "failed"
            report.longrepr = f"{verdict.status} ({verdict.reason}): {verdict.detail}"
    elif report.failed:
        scaling.statuses[item.nodeid] = Status.ERROR
    return report


def _share_s(scaling: Scaling, item: pytest.Item, expected: Expectation) -> float:
    """Return an item's share of the time of its plan's launches, in s."""
    plan = expected.plan.hash
    items = map(_expectation, item.session.items)
    count = sum(isinstance(x, Expectation) and x.plan.hash == plan for x in items)
    measured = scaling.selected.get(plan)
    launches = scaling.start().run.launches if measured is not None else []
    spent_s = sum(x.wall_s for x in launches if measured is not None and x.plan == measured.hash)
    return spent_s / max(1, count)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, Any] | None:
    """Return the category, letter and word of a verdict's status, for example ``?``."""
    status = getattr(report, "scaling", None)
    return _CATEGORY[status] if status is not None and report.when == "call" else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Save the record and combine the verdicts into the exit status."""
    if session.config.stash.get(USAGE, None):
        session.exitstatus = Exit.USAGE
    benchmark.save_none(session.config)
    if KEY not in session.config.stash:
        return
    scaling = session.config.stash[KEY]
    measurer, ours = scaling.measurer, scaling.session
    if session.config.option.collectonly or measurer is None or ours is None:
        return
    stopped = exitstatus == pytest.ExitCode.INTERRUPTED or scaling.interrupted
    try:
        if ours.run.plans or ours.run.recoveries:
            whole = not (stopped or measurer.waiting or measurer.lost)
            scaling.record = ours.save(complete=whole)
    except UnwrittenError as error:
        scaling.unwritten = error
        session.exitstatus = error.exit
        return
    finally:
        ours.close()
    if session.exitstatus not in (0, 1, 5):
        return
    statuses = list(scaling.statuses.values())
    statuses += [verdict.counts for verdict in measurer.judged]
    if scaling.foreign_failures:
        statuses.append(Status.FAIL)
    fails = session.config.option.scaling_inconclusive == "fail"
    session.exitstatus = exit_status(statuses, inconclusive_fails=fails)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if KEY not in config.stash:
        return
    scaling = config.stash[KEY]
    if scaling.unwritten is not None:
        terminalreporter.write_line(f"\nERROR: {scaling.unwritten}")
    if scaling.record is None or scaling.session is None:
        return
    from harness.interface.report.page import page as pages

    width = min(140, max(80, terminalreporter._tw.fullwidth))
    folder = text.shown(scaling.session.run.folder)
    page = pages.write(scaling.record, scaling.session.run.folder)
    lines = screen.lines(scaling.record, folder, scaling.rerun, width, page=page)
    color = terminalreporter._tw.hasmarkup
    terminalreporter.write_line("")
    for line in lines:
        terminalreporter.write_line(text.paint(line) if color else line)
