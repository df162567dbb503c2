"""Write the headline of a run, the causes of open results, and the commands that resolve them."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis.judging.points import shown_against
from harness.analysis.rerun_command import changed, command
from harness.analysis.results import Result, defects, required, results, tally, worst
from harness.analysis.script.counting import came_to_each, handed_out
from harness.cases import CaseSpec, Device, Mode, Plan
from harness.cases.script import ACCEPTABLE
from harness.host.admission import Level
from harness.interface.report import figures
from harness.interface.report.script import launching
from harness.launch.causes import PARTED
from harness.record import Purpose, Reason, RunRecord, Status
from harness.record.outcome import SEVERITY

#: If more verdicts than this need the same remedy, only the command of the whole run is printed.
FEW = 2
INTERRUPTED = "the run was interrupted"
#: Background load in cores below which it is not reported as a cause.
LEAST_CORES = 0.1
#: The smallest number of ranks for a scaling sweep that starts at two ranks.
LEAST_RANKS = 4
#: The part of an error message that a script printed itself: its last lines, or its exception.
_SAID = re.compile(r"\(it said: .*|left with status \d+: .*|\A[\w.]*(Error|Exception): .*", re.S)
#: Messages of a script that needs more than one rank. Messages about GPUs count only on GPUs.
_OF_RANKS = {
    Device.CPU: re.compile(
        r"(?!.*(gpu|cuda|nvidia)).*(rank|world|process|(?<!data)parallel)", re.I | re.S
    ),
    Device.CUDA: re.compile(
        r"(?!.*driver).*(rank|world|process|gpu|device|(?<!data)parallel)", re.I | re.S
    ),
}
#: Messages that contain "rank" but do not depend on the number of ranks.
_OF_WORDS = re.compile(r"unrecognized arguments|arguments are required|starts ranks of its own")
#: Part of the message about a training that is too short at any world size.
_SHORT = "before an optimizer had stepped twice"
#: The message about a script that ends before its window does. The first group counts its steps.
_ENDED = re.compile(r"the script ended after (\d+) of the \d+ steps wanted")
#: For a script with few steps: proposed warm-up steps, and the fewest steps that can be timed.
WARM_UP = 4
LEAST_STEPS = 4
#: Factor by which the proposed warm-up is longer if the timed steps broke the repeating pattern of
#: updates (the period) that was found in the warm-up.
LONGER = 4
_LEFT_PERIOD = "left its period"
#: The question in a verdict whose samples per step fit the other scaling mode.
_MODE_ASKED = re.compile(r"\(--mode \w+\?\)")
#: The message of a check that failed, with the check's name; checks that ``--fresh`` fixes are
#: excluded.
_OF_CHECK = re.compile(r"(?:[\w-]+: )?(\w+): (?!.*--fresh)", re.DOTALL)
#: The request in a verdict whose samples cannot be counted.
_SAMPLES_ASKED = re.compile(r"say how many a step has on one rank")


def headline(run: RunRecord) -> str:
    """Return one sentence about the run's result.

    It states the worst status, how many thresholds pass, the worst result, and the efficiency at
    the largest world size.
    """
    return brief(run, _headline(run))


def brief(run: RunRecord, text: str) -> str:
    """Return a text without the command of the run's script, which the screen shows once.

    If a run has several scripts, return the text unchanged.
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
    largest = _largest(run)
    result = worst(run) if required(run) else None
    if result is None:
        return ". ".join(filter(None, [_unruled(run), largest]))
    parts = [f"{result.counts}: {tally(run)}"]
    if not run.complete:
        parts[0] += f"; {INTERRUPTED}"
    if result.counts is not Status.PASS:
        parts[0] += f"; {_why(result)}"
    return ". ".join(filter(None, [*parts, largest]))


def why_open(run: RunRecord) -> list[str]:
    """Return the causes of results that do not pass, with the number of results they affect."""
    judged = required(run)
    still_open = [result for result in judged if result.counts is Status.INCONCLUSIVE]
    causes = []
    if background := _neighbour(run, judged, bool(still_open)):
        causes.append(background)
    others = [r for r in still_open if not (background and r.reason is Reason.NOISY_HOST)]
    by_detail: dict[str, list[str]] = {}
    broken = [r for r in [*judged, *defects(run)] if r.counts in (Status.ERROR, Status.FAIL)]
    for result in broken + others:
        detail = result.detail
        if detail.startswith(result.case):
            detail = detail.removeprefix(result.case).lstrip(": ")
        if result.more is not None:
            detail += f"; {result.remedy} decide it"
        by_detail.setdefault(detail, []).append(result.case)
    for detail, cases in list(by_detail.items())[:FEW]:
        more = f" (and {len(cases) - 1} more)" if len(cases) > 1 else ""
        causes.append(f"{cases[0]}{more}: {detail}")
    if len(by_detail) > FEW:
        unnamed = len(by_detail) - FEW
        causes.append(f"and {unnamed} other cause{'s' * (unnamed > 1)} (--every)")
    return [brief(run, cause) for cause in causes]


def _neighbour(run: RunRecord, judged: Sequence[Result], still_open: bool) -> str:
    """Return the load of other processes during this run, if it affected a result.

    Return an empty text if the host was unfit for another reason, such as a GPU in use by others.
    """
    if any(f.level is Level.BAD and f.check != "load" for f in run.admission):
        return ""
    loaded = sum(bool(r.doubt) or r.reason is Reason.NOISY_HOST for r in judged)
    if not loaded:
        return ""
    by_cores: dict[int, list[float]] = {}
    for launch in (launch for launch in run.launches if launch.purpose is Purpose.TIMED):
        if launch.foreign_load is not None:
            num_cores = len({(rank.host, core) for rank in launch.ranks for core in rank.affinity})
            by_cores.setdefault(num_cores, []).append(launch.foreign_load * num_cores)
    used = fmean(by_cores[max(by_cores)]) if by_cores else 0.0
    if used < LEAST_CORES:
        return ""
    cores = f"background load of {used:.1f} of {max(by_cores)} cores"
    of_all = f"during {loaded} of {len(judged)} thresholds"
    if not still_open:
        return f"{cores} {of_all}; every PASS accounts for it"
    return f"{cores} {of_all}: find the processes (top -d 1), stop them, and run again"


def _unruled(run: RunRecord) -> str:
    """Return the headline of a run without thresholds: its worst error, if it has one."""
    every = results(run)
    result = min(every, key=lambda r: SEVERITY.index(r.counts), default=None)
    if result is not None and result.counts in (Status.ERROR, Status.FAIL, Status.NOT_COMPARABLE):
        return f"{result.counts}: {_of_case(result)}"
    if result is not None and all(r.status is Status.INCONCLUSIVE for r in every):
        when = "" if run.complete else f"{INTERRUPTED}; "
        return f"{result.status}: {result.case}: {when}{result.detail}"
    if every and all(result.reason is Reason.CHECKED for result in every):
        worlds = dict.fromkeys(arm.case.world for plan in run.plans for arm in plan.arms)
        return f"{Status.RECORDED}: the checks hold on {', '.join(worlds)}; nothing was timed"
    return _without_verdict(run, every)


def _without_verdict(run: RunRecord, every: Sequence[Result]) -> str:
    """Return the headline of a run that no threshold judged and that has no error."""
    unjudged = "applies" if run.thresholds else "is configured"
    if run.measured_alone and not every:
        return f"{Status.RECORDED}: {run.measured_alone} was measured, no threshold {unjudged}"
    if all(result.value is None for result in every):
        reason = f": {every[0].detail}" if every else "" if run.complete else f": {INTERRUPTED}"
        return f"{Status.SKIP}: nothing was measured{reason}"
    if skipped := [r for r in every if r.rule is not None and r.status is Status.SKIP]:
        number = f"{len(skipped)} threshold{'s' * (len(skipped) != 1)}"
        return f"{Status.SKIP}: {number} judged nothing: {skipped[0].detail}"
    return f"{Status.RECORDED}: results only, no threshold {unjudged}"


def decide(run: RunRecord) -> list[str]:
    """Return a remedy for each inconclusive result, with the command to run.

    The command is for one case, or for the whole run if several results need the same remedy.
    Results that this machine cannot measure are left out.
    """
    cases = {arm.case.id: arm.case for plan in run.plans for arm in plan.arms}
    rules = {rule.name: rule for rule in run.thresholds}
    by_remedy: dict[str, list[str]] = {}
    cut = {arm.case.id for plan in _cut(run) for arm in plan.arms}
    of_tests = {result.case for result in results(run) if "::" in (result.rule or "")}
    for result in results(run):
        open_ = result.rule in rules and result.counts is Status.INCONCLUSIVE
        longer = result.reason is Reason.OUT_OF_TIME and result.case in cut
        measurable = result.case in cases and result.reason is not Reason.NOT_MEASURED
        if open_ and measurable and not longer:
            by_remedy.setdefault(result.remedy, []).append(result.case)
    lines = []
    for remedy, undecided in by_remedy.items():
        if len(undecided) > FEW:
            lines.append(f"{len(undecided)} results by {remedy}: {shlex.join(run.settings.argv)}")
            continue
        for case in undecided:
            again = command(cases[case], run.settings)
            whole = cases[case].script or case in of_tests
            # The command of the case alone would lose the smallest world size of a script's sweep,
            # and the threshold that a test defines.
            if whole:
                again = shlex.join(run.settings.argv) or again
            lines.append(f"{case} by {remedy}: {again}")
    changes = (
        _more_trials, _longer, _later_rung, launching.otherwise, _other_mode, _stated_samples,
        _fewer_steps, _longer_warm_up,
    )  # fmt: skip
    changed_words = [line for change in changes for line in change(run)]
    return [*lines, *(changed_words or _accepting(run))]


def _more_trials(run: RunRecord) -> Iterator[str]:
    """Yield the command that makes enough trials for a verdict on every kind of fault."""
    missing = [
        result.n + result.more
        for result in results(run)
        if result.metric == "recovery_s" and result.more is not None
    ]
    if missing:
        again = changed(run.settings.argv, trials=str(max(missing)))
        yield f"{len(missing)} results by more trials: {again}"


def _cut(run: RunRecord) -> list[Plan]:
    """Return the plans that the time budget ended."""
    return [plan for plan in run.plans if plan.hash in run.out_of_time]


def _longer(run: RunRecord) -> Iterator[str]:
    """Yield the command with a time budget that is sufficient for the plans that were cut.

    The estimate uses the durations of their launches. Cases that never ran are assumed to take as
    long as the longest launch.
    """
    wrong_cases = {result.case for result in results(run) if result.counts is Status.ERROR}
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
    """Yield the command for a script that refuses to train on one rank."""
    for plan in run.plans:
        alone = {arm.case.hash for arm in plan.arms if arm.case.script and arm.case.world_size == 1}
        refused = any(
            launch.cause is not None
            and launch.cause.kind == "exception"
            and launch.cause.step == 0
            and _SHORT not in launch.cause.message
            and not _OF_WORDS.search(launch.cause.message)
            and (quoted := _SAID.search(launch.cause.message))
            and _OF_RANKS[plan.arms[0].case.device].match(quoted[0])
            for case in alone
            for launch in run.by_case.get(case, ())
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
    """Yield the command for a script whose samples per step fit the other scaling mode."""
    asked = {result.case for result in results(run) if _MODE_ASKED.search(result.detail)}
    for plan in run.plans:
        if not any(arm.case.script and arm.case.id in asked for arm in plan.arms):
            continue
        largest = max((arm.case for arm in plan.arms), key=lambda case: case.world_size)
        weak = largest.mode is Mode.WEAK
        mode = Mode.STRONG if weak else Mode.WEAK
        again = _with(replace(largest, mode=mode), run, {"mode": mode})
        yield f"if {'ranks share one batch' if weak else 'each rank has its own batch'}: {again}"


def _stated_samples(run: RunRecord) -> Iterator[str]:
    """Yield the command for a script whose samples can only be counted by its data loader."""
    asked = {result.case for result in results(run) if _SAMPLES_ASKED.search(result.detail)}
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
    """Yield the command for a script whose update period is longer than the warm-up."""
    left = {result.case for result in results(run) if _LEFT_PERIOD in result.detail}
    for plan in run.plans:
        if _of_script(run) and any(arm.case.id in left for arm in plan.arms):
            words = changed(run.settings.argv, warm_up=str(LONGER * plan.protocol.cut))
            yield f"if its period is longer: {words}"


def _accepting(run: RunRecord) -> Iterator[str]:
    """Yield the command that accepts a failed check, if the failure is intended."""
    named: dict[str, set[str]] = {}
    for result in results(run):
        of_check = _OF_CHECK.match(result.detail)
        if result.counts is Status.ERROR and of_check and of_check[1] in ACCEPTABLE:
            named.setdefault(result.case, set()).add(of_check[1])
    for plan in run.plans:
        cases = [arm.case for arm in plan.arms if arm.case.script]
        checks = sorted({name for case in cases for name in named.get(case.id, ())})
        if checks:
            largest = max(cases, key=lambda case: case.world_size)
            before = filter(None, largest.accepted.split(","))
            accepted = ",".join(sorted({*before, *checks}))
            again = _with(replace(largest, accepted=accepted), run, {"accept": accepted})
            yield f"if this is intended: {again}"


def _fewer_steps(run: RunRecord) -> Iterator[str]:
    """Yield the command for a script that ends before the end of its window."""
    ends = (
        _ENDED.search(launch.cause.message)
        for launch in run.launches
        if launch.cause is not None and PARTED not in launch.cause.message
    )
    done = min((int(end[1]) for end in ends if end), default=0)
    warm_up = min(WARM_UP, done // 4)
    if done - 1 - warm_up < LEAST_STEPS or not _of_script(run):
        return
    options = {"steps": str(done - 1 - warm_up), "warm_up": str(warm_up)}
    yield f"if it is to remain this short: {changed(run.settings.argv, **options)}"


def _of_script(run: RunRecord) -> bool:
    """Return whether the run was started for a user's script."""
    return "--script" in run.settings.argv and "--" in run.settings.argv


def _with(case: CaseSpec, run: RunRecord, options: Mapping[str, str]) -> str:
    """Return the run's command with changed options.

    If the run was not started for a script, return the command of ``case``, which has the options.
    """
    if _of_script(run):
        return changed(run.settings.argv, **options)
    options_of_case, dashes, script = command(case, run.settings).partition(" -- ")
    first_rung = " --first-rung 2" if "first_rung" in options else ""
    return f"{options_of_case}{first_rung}{dashes}{script}"


def _why(result: Result) -> str:
    if result.value is None or not result.bound or result.status is Status.RECORDED:
        return _of_case(result)
    figure = figures.figure(result, ".3g")
    return f"{result.case}: {result.metric} is {figure}, threshold {result.bound}"


def _of_case(result: Result) -> str:
    """Return the case and the detail of a result, which may name the case itself."""
    return f"{result.case}: {result.detail.removeprefix(f'{result.case}: ')}"


def _largest(run: RunRecord) -> str:
    """Return the efficiency at the largest world size on real hardware, as its row shows it.

    If there are several results, return the worst. Inconclusive results, and results with a caveat,
    are left out.
    """
    rungs = list(_rungs(run))
    if not rungs:
        return ""
    largest = max(case.world_size for case, _ in rungs)
    of_largest = [result for case, result in rungs if case.world_size == largest]
    # If a threshold judges a result, the others must not replace it while it is inconclusive.
    judged = [result for result in of_largest if result.rule] or of_largest
    quotable = [result for result in judged if _stands(result)]
    if not quotable:
        return ""
    lowest = min(quotable, key=lambda result: result.value or 0.0)
    case = next(case for case, result in rungs if result is lowest)
    unit = "GPUs" if case.device == "cuda" else "CPU ranks"
    versus = "" if lowest.against == "plain" else f" v {lowest.against}"
    figure = figures.figure(lowest, ".0%")
    mark = f" ({lowest.widened})" if lowest.widened else ""
    plain = figure.removesuffix(f" {lowest.widened}")
    return f"{case.family}: scaling efficiency{versus} {plain} on {largest} {unit}{mark}"


def _rungs(run: RunRecord) -> Iterator[tuple[CaseSpec, Result]]:
    """Yield every efficiency on several ranks of real hardware that has a row on the screen.

    These are the efficiencies that a threshold judges. In sweeps without a threshold, they are
    relative to the baseline that the screen shows.
    """
    cases = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    for result in results(run):
        case = cases.get(result.case_hash)
        plan = run.plan_of.get(result.plan)
        if result.metric != "efficiency" or result.value is None or case is None or plan is None:
            continue
        if not result.rule and result.against != shown_against(plan):
            continue
        if case.world_size > 1 and not run.stand_ins(case):
            yield case, result


def _stands(result: Result) -> bool:
    """Return whether a result may be quoted: it is decided, or has no threshold and no caveat."""
    decided = result.status in (Status.PASS, Status.FAIL)
    unruled = result.status is Status.RECORDED and result.reason is Reason.NO_RULE
    return result.value is not None and (decided or (unruled and not result.doubt))
