"""Pilots: what discarded launches settle before the first one counts. Pure, from their samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from harness.analysis.samples import figures, steadiness
from harness.cases import Arm, Plan, Window
from harness.record import Described, LaunchRecord, Purpose, RunRecord
from harness.record.store import load_samples

#: A pilot that stood still for more of its time is made again.
STOOD = 0.02


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """One usable pilot: the kept steps of its slowest rank, and what it cost beside its steps."""

    case: str
    window: Window
    steps: tuple[float, ...]
    launch_s: float


def read(
    run: RunRecord, folder: Path, plan: Plan | None = None, known: dict[str, Pilot] | None = None
) -> list[Pilot]:
    """Every usable pilot and probe of a run; with a plan those before its first timed launch.

    ``known``: those that were read before, by launch; what is read is added.
    """
    known = {} if known is None else known
    plans = {p.hash: p for p in run.plans}
    pilots = []
    for launch in run.launches:
        if plan is not None and launch.plan == plan.hash and launch.purpose is Purpose.TIMED:
            break
        if launch.purpose in (Purpose.PILOT, Purpose.PROBE) and launch.usable:
            if launch.launch not in known:
                window = run.window(plans[launch.plan], launch)
                known[launch.launch] = _pilot(launch, window, folder)
            pilots.append(known[launch.launch])
    return pilots


def _pilot(launch: LaunchRecord, window: Window, folder: Path) -> Pilot:
    samples = [load_samples(folder, launch.launch, r) for r in launch.ranks]
    stepping = max(r.stepping_s for r in launch.ranks)
    return Pilot(
        case=launch.case,
        window=window,
        steps=tuple(figures.slowest(samples, window.cut)),
        launch_s=max(1e-3, launch.wall_s - stepping),
    )


def launch_sd(pilots: Sequence[Pilot]) -> float | None:
    """Relative deviation between launches of one arm, over all arms that were piloted twice."""
    pairs = []
    for case, window in dict.fromkeys((p.case, p.window) for p in pilots):
        repeats = [p.steps for p in pilots if (p.case, p.window) == (case, window)]
        if len(repeats) > 1:
            pairs.append((repeats[0], repeats[1]))
    return steadiness.launch_sd(pairs)


def windows(
    plan: Plan, pilots: Sequence[Pilot], described: Mapping[str, Described]
) -> dict[str, Window]:
    """Arm -> its window: warm-up as its pilot showed it, and as many steps as are worth timing.

    Ranks that talk every so many steps are timed for whole periods of it.
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
    """Whether an arm's only pilot asks for so long a warm-up that another pilot costs less, or
    stood still for a moment.

    A warm-up is there in every launch, and what stalls every so many steps stalls in the next
    pilot, too; in one pilot either may have been a busy moment of the host.
    """
    matching = _matching(plan, arm, pilots)
    if len(matching) != 1 or plan.protocol.fixed:
        return False
    num_kept = plan.window.steps - plan.window.cut
    steps = matching[0].steps
    usual = median(steps)
    stood_s = sum(s - usual for s in steps if s > figures.STALL * usual)
    return 2 * steadiness.warm_up(steps) > num_kept or stood_s > STOOD * sum(steps)


def _matching(plan: Plan, arm: Arm, pilots: Sequence[Pilot]) -> list[Pilot]:
    return [p for p in pilots if p.case == arm.case.hash and p.window == plan.pilot]


def _window(plan: Plan, arm: Arm, pilots: Sequence[Pilot], sd: float | None) -> Window:
    matching = _matching(plan, arm, pilots)
    if not matching or plan.to_loss is not None or plan.protocol.fixed:
        return plan.window
    least = plan.window.steps - plan.window.cut
    warm_up, pilot = min(
        ((steadiness.warm_up(p.steps), p) for p in matching), key=lambda two: two[0]
    )
    cut = plan.pilot.cut + warm_up
    after_cut = pilot.steps[cut - plan.pilot.cut :]
    worth = steadiness.best_steps(after_cut, pilot.launch_s, sd or 0.0, least)
    return plan.protocol.lasting(Window(steps=cut + worth, cut=cut), median(after_cut))
