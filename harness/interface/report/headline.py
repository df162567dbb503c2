"""One sentence that a manager could quote: what was asked, what came out, what would decide it."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from harness.analysis.judging.points import shown_against
from harness.analysis.judging.promise import MOST_PAIRS
from harness.analysis.judging.tally import of_stand_in, requirements, tally, wrong
from harness.analysis.rerun_command import changed, command
from harness.analysis.samples.script import came_to_each, handed_out
from harness.base.formatting import si
from harness.cases import CaseSpec, Device, Form, Mode, Plan, metrics
from harness.cases.script import ACCEPTABLE
from harness.host.admission import Level
from harness.interface.report.scaling import judged_interval
from harness.interface.report.script import launching
from harness.record import Purpose, Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY

#: Where more verdicts than this need the same, the whole run is told.
FEW = 2
#: What others use of less than this part of a core is no cause of anything.
LEAST_CORES = 0.1
#: Ranks of the smallest ladder that begins at two.
LEAST_RANKS = 4
#: What a script has said itself: its last words, or its exception.
_SAID = re.compile(r"\(it said: .*|left with status \d+: .*|\A[\w.]*(Error|Exception): .*", re.S)
#: What a script says that one rank is too few for; of GPUs it says it where there are some.
_OF_RANKS = {
    Device.CPU: re.compile(
        r"(?!.*(gpu|cuda|nvidia)).*(rank|world|process|(?<!data)parallel)", re.I | re.S
    ),
    Device.CUDA: re.compile(
        r"(?!.*driver).*(rank|world|process|gpu|device|(?<!data)parallel)", re.I | re.S
    ),
}
#: What says "rank", too, and is no matter of how many there are.
_OF_WORDS = re.compile(r"unrecognized arguments|arguments are required|starts ranks of its own")
#: What is said of a training that is too short, in any world.
_SHORT = "before an optimizer had stepped twice"
#: What is said of one that is shorter than its window, which one more step is behind.
_ENDED = re.compile(r"the script ended after (\d+) of the \d+ steps wanted")
#: Of a script that is short: steps before those that are timed, and how few of these are any.
WARM_UP = 4
LEAST_STEPS = 4
#: So much longer a warm-up is proposed where a period of updates was left.
LONGER = 4
_LEFT_PERIOD = "left its period"
#: What a verdict asks whose samples are those of the other mode.
_MODE_ASKED = re.compile(r"\(--mode \w+\?\)")
#: The check of a script that failed, behind the launch that it failed in; a fork has a cure.
_OF_CHECK = re.compile(r"(?:[\w-]+: )?(\w+): (?!.*--fresh)", re.DOTALL)
#: What a verdict asks whose samples cannot be counted.
_SAMPLES_ASKED = re.compile(r"say how many a step has on one rank")
#: What decides a verdict that more pairs do not.
_DECIDES = {
    Reason.NOISY_HOST: "a quieter host",
    Reason.NOT_STEADY: "longer windows, or a quieter host",
    Reason.NEIGHBOURS: "--one-by-one",
    Reason.OUT_OF_TIME: "more time",
    Reason.INTERRUPTED: "scaleproof run --resume",
    Reason.UNCONFIRMED: "a fresh set of launches",
    Reason.DISAGREE: "another run",
    Reason.PERTURBED: "longer steps",
}


def headline(run: RunRecord) -> str:
    """The worst status, how many requirements hold, the worst case with its figure, the largest
    rung.
    """
    return brief(run, _headline(run))


def brief(run: RunRecord, text: str) -> str:
    """A text without the command of the run's own script, which stands once on a screen; of several
    scripts each keeps its own.
    """
    of_scripts = {arm.case.script: arm.case for plan in run.plans for arm in plan.arms}
    if len(of_scripts) != 1:
        return text
    ((script, case),) = of_scripts.items()
    if not script:
        return text
    of_case = f"+script={case.series['script']}"
    return text.replace(of_case, "").replace(f" {script}: ", " ")


def _headline(run: RunRecord) -> str:
    judged = requirements(run)
    largest = _largest(run)
    if not judged:
        return ". ".join(filter(None, [_unruled(run), largest]))
    # Of equally bad ones that of hardware: a stand-in says nothing of it.
    all_judged = [*judged, *wrong(run)]
    worst = min(all_judged, key=lambda v: (SEVERITY.index(v.counts), of_stand_in(run, v)))
    parts = [f"{worst.counts}: {tally(run)}"]
    if worst.counts is not Status.PASS:
        parts[0] += f"; {_why(run, worst)}"
    return ". ".join(filter(None, [*parts, largest]))


def why_open(run: RunRecord) -> list[str]:
    """The causes of what does not hold, each told once, and how much of it rests on them."""
    judged = requirements(run)
    still_open = [v for v in judged if v.counts is Status.INCONCLUSIVE]
    causes = []
    if beside := _neighbour(run, judged, bool(still_open)):
        causes.append(beside)
    others = [v for v in still_open if not (beside and v.reason is Reason.NOISY_HOST)]
    by_detail: dict[str, list[str]] = {}
    broken = [v for v in [*judged, *wrong(run)] if v.counts in (Status.ERROR, Status.FAIL)]
    for verdict in broken + others:
        detail = verdict.detail
        if detail.startswith(verdict.case):
            detail = detail.partition(": ")[2]
        if verdict.more is not None:
            detail += f"; about {verdict.more} more pairs decide it"
        by_detail.setdefault(detail, []).append(verdict.case)
    for detail, cases in list(by_detail.items())[:FEW]:
        more = f" (and {len(cases) - 1} more)" if len(cases) > 1 else ""
        causes.append(f"{cases[0]}{more}: {detail}")
    if len(by_detail) > FEW:
        causes.append(f"and {len(by_detail) - FEW} other causes (--every)")
    return [brief(run, cause) for cause in causes]


def _neighbour(run: RunRecord, judged: Sequence[Verdict], still_open: bool) -> str:
    """Says what others used beside this run, if that left something open or in doubt.

    Nothing if the host was unfit for another reason, as a GPU that others use: that is the cause.
    """
    if any(f.level is Level.BAD and f.check != "load" for f in run.admission):
        return ""
    beside = sum(bool(verdict.doubt) or verdict.reason is Reason.NOISY_HOST for verdict in judged)
    if not beside:
        return ""
    by_cores: dict[int, list[float]] = {}
    for launch in (launch for launch in run.launches if launch.purpose is Purpose.TIMED):
        if launch.foreign_load is not None:
            num_cores = len({(rank.host, core) for rank in launch.ranks for core in rank.affinity})
            by_cores.setdefault(num_cores, []).append(launch.foreign_load * num_cores)
    used = fmean(by_cores[max(by_cores)]) if by_cores else 0.0
    if used < LEAST_CORES:
        return ""
    cores = f"others used {used:.1f} of {max(by_cores)} cores"
    of_all = f"{beside} of {len(judged)} requirements"
    if not still_open:
        return f"{cores} beside {of_all}; what holds, holds in spite of them"
    return f"{cores} beside {of_all}: find them (top -d 1), stop them, run again"


def _unruled(run: RunRecord) -> str:
    """The headline of a run that no rule judged: an error is one all the same, and where nothing
    was decided nothing is recorded.
    """
    worst = min(run.verdicts, key=lambda v: SEVERITY.index(v.counts), default=None)
    if worst is not None and worst.counts in (Status.ERROR, Status.FAIL):
        return f"{worst.counts}: {worst.case}: {worst.detail}"
    if worst is not None and all(verdict.status is Status.INCONCLUSIVE for verdict in run.verdicts):
        when = "" if run.complete else "the run was interrupted; "
        return f"{worst.status}: {worst.case}: {when}{worst.detail}"
    return "RECORDED: no rule judged what was measured"


def decide(run: RunRecord) -> list[str]:
    """Says what would decide the undecided requirements, and the command to run.

    That of the case alone; that of the whole run where several requirements need the same. Nothing
    decides here what this machine does not tell.
    """
    cases = {arm.case.id: arm.case for plan in run.plans for arm in plan.arms}
    rules = {rule.name: rule for rule in run.thresholds}
    by_remedy: dict[str, list[str]] = {}
    cut = {arm.case.id for plan in _cut(run) for arm in plan.arms}
    of_tests = {verdict.case for verdict in run.verdicts if "::" in (verdict.rule or "")}
    for verdict in run.verdicts:
        open_ = (
            verdict.rule in rules
            and verdict.counts is Status.INCONCLUSIVE
            and verdict.case in cases
        )
        longer = verdict.reason is Reason.OUT_OF_TIME and verdict.case in cut
        if open_ and verdict.reason is not Reason.NOT_MEASURED and not longer:
            by_remedy.setdefault(_decides(verdict), []).append(verdict.case)
    lines = []
    for remedy, undecided in by_remedy.items():
        if len(undecided) > FEW:
            lines.append(f"{len(undecided)} verdicts by {remedy}: {shlex.join(run.settings.argv)}")
            continue
        for case in undecided:
            again = command(cases[case], run.settings)
            whole = cases[case].script or case in of_tests
            if whole:  # a ladder that may begin anywhere, or a bound of a test: by the run's words
                again = shlex.join(run.settings.argv) or again
            lines.append(f"{case} by {remedy}: {again}")
    changes = (
        _longer, _later_rung, launching.otherwise, _other_mode, _stated_samples, _fewer_steps,
        _longer_warm_up,
    )  # fmt: skip
    changed_words = [line for change in changes for line in change(run)]
    return [*lines, *(changed_words or _accepting(run))]


def _cut(run: RunRecord) -> list[Plan]:
    """The plans that the time budget ended."""
    return [plan for plan in run.plans if plan.hash in run.out_of_time]


def _longer(run: RunRecord) -> Iterator[str]:
    """Says what budget of time would do for all that was cut, by how long its launches took; those
    that never ran are taken for as long as the longest.
    """
    wrong_cases = {verdict.case for verdict in run.verdicts if verdict.counts is Status.ERROR}
    cut = [x for x in _cut(run) if not any(arm.case.id in wrong_cases for arm in x.arms)]
    if run.settings.budget_s is None or not cut:
        return
    walls: dict[str, list[float]] = {}
    for launch in run.launches:
        walls.setdefault(launch.case, []).append(launch.wall_s)
    longest_s = max((max(walls_s) for walls_s in walls.values()), default=run.settings.budget_s)
    more_s = sum(
        (fmean(walls[arm.case.hash]) if arm.case.hash in walls else longest_s)
        * (1 + 2 * plan.protocol.min_blocks)
        for plan in cut
        for arm in plan.arms
    )
    minutes = math.ceil((run.elapsed_s + 1.2 * more_s) / 60)
    yield f"with time for all of it: {changed(run.settings.argv, time_budget=f'{minutes}m')}"


def _later_rung(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured that refuses to train on one rank, as far as it says so."""
    for plan in run.plans:
        alone = {arm.case.hash for arm in plan.arms if arm.case.script and arm.case.world_size == 1}
        refused = any(
            launch.case in alone
            and launch.cause is not None
            and launch.cause.kind == "exception"
            and launch.cause.step == 0
            and _SHORT not in launch.cause.message
            and not _OF_WORDS.search(launch.cause.message)
            and (quoted := _SAID.search(launch.cause.message))
            and _OF_RANKS[plan.arms[0].case.device].match(quoted[0])
            for launch in run.launches
        )
        largest = max((arm.case for arm in plan.arms), key=lambda case: case.world_size)
        options = {"first_rung": "2"}
        if refused and largest.world_size < LEAST_RANKS:
            if largest.device is not Device.CPU:
                continue
            largest = replace(largest, world_size=LEAST_RANKS, nodes=(LEAST_RANKS,))
            options["cpus"] = str(LEAST_RANKS)
        if refused:
            yield f"if it needs several ranks: {_with(largest, run, options)}"


def _other_mode(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured whose steps have the samples of the other mode."""
    asked = {verdict.case for verdict in run.verdicts if _MODE_ASKED.search(verdict.detail)}
    for plan in run.plans:
        if not any(arm.case.script and arm.case.id in asked for arm in plan.arms):
            continue
        largest = max((arm.case for arm in plan.arms), key=lambda case: case.world_size)
        weak = largest.mode is Mode.WEAK
        mode = Mode.STRONG if weak else Mode.WEAK
        again = _with(replace(largest, mode=mode), run, {"mode": mode})
        yield f"if {'ranks share one batch' if weak else 'each rank has its own batch'}: {again}"


def _stated_samples(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured whose samples nobody can count but its loader."""
    asked = {verdict.case for verdict in run.verdicts if _SAMPLES_ASKED.search(verdict.detail)}
    for plan in run.plans:
        if not any(arm.case.script and arm.case.id in asked for arm in plan.arms):
            continue
        lowest = min((arm.case for arm in plan.arms), key=lambda case: case.world_size)
        launches = run.by_case.get(lowest.hash, ())
        by_loaders = max((handed_out(launch.ranks) for launch in launches), default=0.0)
        of_all = by_loaders or max((came_to_each(launch.ranks) for launch in launches), default=0)
        samples = round(of_all / (lowest.world_size if lowest.mode is Mode.WEAK else 1))
        if samples:
            largest = max((arm.case for arm in plan.arms), key=lambda case: case.world_size)
            stated = replace(largest, samples_per_step=samples)
            again = _with(stated, run, {"samples_per_step": str(samples)})
            of_whom = "its loader hands out" if by_loaders else "reach each of its modules"
            yield f"if these are the {samples} that {of_whom}: {again}"


def _longer_warm_up(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured whose period is longer than its warm-up shows."""
    left = {verdict.case for verdict in run.verdicts if _LEFT_PERIOD in verdict.detail}
    for plan in run.plans:
        if _of_script(run) and any(arm.case.id in left for arm in plan.arms):
            words = changed(run.settings.argv, warm_up=str(LONGER * plan.protocol.cut))
            yield f"if its period is longer: {words}"


def _accepting(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured whose user knows better than a check of it."""
    named: dict[str, set[str]] = {}
    for verdict in run.verdicts:
        of_check = _OF_CHECK.match(verdict.detail)
        if verdict.counts is Status.ERROR and of_check and of_check[1] in ACCEPTABLE:
            named.setdefault(verdict.case, set()).add(of_check[1])
    for plan in run.plans:
        cases = [arm.case for arm in plan.arms if arm.case.script]
        checks = sorted({name for case in cases for name in named.get(case.id, ())})
        if checks:
            largest = max(cases, key=lambda case: case.world_size)
            before = filter(None, largest.accepted.split(","))
            accepted = ",".join(sorted({*before, *checks}))
            again = _with(replace(largest, accepted=accepted), run, {"accept": accepted})
            yield f"if that is meant: {again}"


def _fewer_steps(run: RunRecord) -> Iterator[str]:
    """Says how a script is measured that ends before its window does."""
    ends = (
        _ENDED.search(launch.cause.message) for launch in run.launches if launch.cause is not None
    )
    done = min((int(end[1]) for end in ends if end), default=0)
    warm_up = min(WARM_UP, done // 4)
    if done - 1 - warm_up < LEAST_STEPS or not _of_script(run):
        return
    options = {"steps": str(done - 1 - warm_up), "warm_up": str(warm_up)}
    yield f"if it is to stay as short: {changed(run.settings.argv, **options)}"


def _of_script(run: RunRecord) -> bool:
    """Whether the run was typed as one of a user's own script."""
    return "--script" in run.settings.argv and "--" in run.settings.argv


def _with(case: CaseSpec, run: RunRecord, options: Mapping[str, str]) -> str:
    """The command of a run as it was typed, with other values of these options; where it was not
    typed, that of a case, which has them.
    """
    if _of_script(run):
        return changed(run.settings.argv, **options)
    options_of_case, dashes, script = command(case, run.settings).partition(" -- ")
    first_rung = " --first-rung 2" if "first_rung" in options else ""
    return f"{options_of_case}{first_rung}{dashes}{script}"


def _why(run: RunRecord, v: Verdict) -> str:
    if v.value is None or not v.bound or v.status is Status.RECORDED:
        return f"{v.case}: {v.detail}"
    metric = metrics.metric(v.metric)

    show = partial(si, unit=metric.unit) if metric.form is Form.ABSOLUTE else "{:.3g}".format
    of = "" if v.metric == "efficiency" else f" {v.metric}"
    span = f" {judged_interval(v, show)}".rstrip()
    return f"{v.case} has{of} {show(v.value)}{span} where {v.bound} is asked"


def _decides(v: Verdict) -> str:
    """More pairs, by how the interval shrinks with them; or whatever else is in the way."""
    if v.more is not None:
        return f"about {v.more} more pairs"
    if v.reason in _DECIDES:
        return _DECIDES[v.reason]
    return f"over {MOST_PAIRS} more pairs, or a quieter host"


def _largest(run: RunRecord) -> str:
    """The largest rung of real hardware, as its row on the screen has it: what is left of a rank's
    speed there, with its interval, and against which baseline if that is not plain.

    Of several the worst; none that is undecided or in doubt, whatever it reads.
    """
    rungs = list(_rungs(run))
    if not rungs:
        return ""
    largest = max(case.world_size for case, _ in rungs)
    rungs = [(c, v) for c, v in rungs if c.world_size == largest]
    # Beside a requirement no other figure is quoted: it would stand in for one that is open.
    asked = [(c, v) for c, v in rungs if v.rule] or rungs
    asked = [(c, v) for c, v in asked if _stands(v)]
    if not asked:
        return ""
    case, worst = min(asked, key=lambda rung: rung[1].value or 0.0)
    assert worst.value is not None
    span = f" {judged_interval(worst, lambda end: f'{100 * end:.0f}')}".rstrip()
    unit = "GPUs" if case.device == "cuda" else "CPU ranks"
    versus = "" if worst.against == "plain" else f", v {worst.against}"
    ranks = f"{largest} {unit}{versus}"
    return f"{case.family} keeps {worst.value:.0%}{span} of a rank's speed on {ranks}"


def _rungs(run: RunRecord) -> Iterator[tuple[CaseSpec, Verdict]]:
    """Every efficiency of several ranks of real hardware that has a row on the screen: those that a
    rule judges, and of other ladders those against the baseline that the screen shows.
    """
    cases = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    for verdict in run.verdicts:
        case = cases.get(verdict.case_hash)
        plan = run.plan_of.get(verdict.plan)
        if verdict.metric != "efficiency" or verdict.value is None or case is None or plan is None:
            continue
        if not verdict.rule and verdict.against != shown_against(plan):
            continue
        if case.world_size > 1 and not run.stand_ins(case):
            yield case, verdict


def _stands(v: Verdict) -> bool:
    """Whether a figure may be quoted."""
    decided = v.status in (Status.PASS, Status.FAIL)
    recorded = v.status is Status.RECORDED and v.reason is Reason.NO_RULE and not v.doubt
    return v.value is not None and (decided or recorded)
