"""Read calibration launches (pilots), and choose the number of steps of each arm's timed launches.

An arm is a case in its role in a comparison. A window consists of the steps of a launch that are
timed, after the warm-up steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from harness.analysis.samples import figures
from harness.analysis.samples.steadiness import best_steps, sd_of_launches, warm_up_steps
from harness.cases import Arm, Plan, Window
from harness.record import Described, LaunchRecord, Purpose, RunRecord
from harness.record.store import Samples, load_samples

#: A pilot is repeated if stalls took more than this share of its time.
STOOD = 0.02


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """A usable pilot.

    ``steps`` are the step times in seconds after the warm-up; a step takes as long as its slowest
    rank. ``launch_s`` is the time in seconds that the launch took in addition to its steps.
    """

    case: str
    window: Window
    steps: tuple[float, ...]
    launch_s: float


def read(
    run: RunRecord, folder: Path, plan: Plan | None = None, known: dict[str, Pilot] | None = None
) -> list[Pilot]:
    """Return every usable pilot and probe of a run.

    If a plan is given, return only the launches before the plan's first timed launch. ``known`` is
    a cache of pilots by launch, to which pilots are added when they are read.
    """
    known = {} if known is None else known
    timed = (
        (x for x in run.by_plan.get(plan.hash, ()) if x.purpose is Purpose.TIMED) if plan else ()
    )
    first = next(iter(timed), None)
    end = len(run.launches) if first is None else run.places[first.launch]
    pilots = []
    for place, launch in run.once("pilots", lambda: _usable(run)):
        if place >= end:
            break
        if launch.launch not in known:
            window = run.window(run.plan_of[launch.plan], launch)
            samples = [load_samples(folder, launch.launch, rank) for rank in launch.ranks]
            known[launch.launch] = pilot(launch, window, samples)
        pilots.append(known[launch.launch])
    return pilots


def _usable(run: RunRecord) -> list[tuple[int, LaunchRecord]]:
    """Return usable pilots and probes with their positions in the record."""
    return [(place, launch) for place, launch in enumerate(run.launches) if is_pilot(launch)]


def is_pilot(launch: LaunchRecord) -> bool:
    """Return whether a launch is a usable pilot or probe."""
    return launch.purpose in (Purpose.PILOT, Purpose.PROBE) and launch.usable


def pilot(launch: LaunchRecord, window: Window, samples: Sequence[Samples]) -> Pilot:
    """Return a pilot as its samples describe it."""
    stepping = max(rank.stepping_s for rank in launch.ranks)
    return Pilot(
        case=launch.case,
        window=window,
        steps=tuple(figures.slowest(samples, window.cut)),
        launch_s=max(1e-3, launch.wall_s - stepping),
    )


def launch_sd(pilots: Sequence[Pilot]) -> float | None:
    """Return the relative standard deviation between launches of one arm, or None if unknown.

    It is estimated from all arms that have two pilots.
    """
    repeats: dict[tuple[str, Window], list[tuple[float, ...]]] = {}
    for pilot in pilots:
        repeats.setdefault((pilot.case, pilot.window), []).append(pilot.steps)
    return sd_of_launches([(of[0], of[1]) for of in repeats.values() if len(of) > 1])


def windows(
    plan: Plan, pilots: Sequence[Pilot], described: Mapping[str, Described]
) -> dict[str, Window]:
    """Return the window of each arm, by name.

    The arm's pilot determines the length of the warm-up and the number of timed steps. If ranks
    communicate only every few steps, the number of timed steps is a multiple of this interval.
    """
    deviation = launch_sd(pilots)
    by_arm = {}
    for arm in plan.arms:
        window = _window(plan, arm, pilots, deviation)
        description = described.get(arm.case.hash)
        period = description.expected.period if description and description.expected else 1
        num_kept = -(-(window.steps - window.cut) // period) * period
        by_arm[arm.name] = replace(window, steps=window.cut + num_kept)
    return by_arm


def unsettled(plan: Plan, arm: Arm, pilots: Sequence[Pilot]) -> bool:
    """Return whether an arm needs a second pilot.

    It does if the first pilot stalled, or if it indicates a warm-up that costs more than another
    pilot, because every launch repeats the warm-up. A short load of
    the host can cause both in a single pilot. A second pilot shows whether they recur.
    """
    matching = _matching(plan, arm, pilots)
    if len(matching) != 1 or plan.protocol.fixed:
        return False
    num_kept = plan.window.steps - plan.window.cut
    steps = matching[0].steps
    usual = median(steps)
    stood_s = sum(step - usual for step in steps if step > figures.STALL * usual)
    return 2 * warm_up_steps(steps) > num_kept or stood_s > STOOD * sum(steps)


def _matching(plan: Plan, arm: Arm, pilots: Sequence[Pilot]) -> list[Pilot]:
    return [pilot for pilot in pilots if pilot.case == arm.case.hash and pilot.window == plan.pilot]


def _window(plan: Plan, arm: Arm, pilots: Sequence[Pilot], sd: float | None) -> Window:
    matching = _matching(plan, arm, pilots)
    if not matching or plan.to_loss is not None or plan.protocol.fixed:
        return plan.window
    least = plan.window.steps - plan.window.cut
    warm_up, pilot = min(((warm_up_steps(p.steps), p) for p in matching), key=lambda two: two[0])
    cut = plan.pilot.cut + warm_up
    after_cut = pilot.steps[cut - plan.pilot.cut :]
    worth = best_steps(after_cut, pilot.launch_s, sd or 0.0, least)
    return plan.protocol.lasting(Window(steps=cut + worth, cut=cut), median(after_cut))
