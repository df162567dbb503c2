"""Which references a plan wants: the losses that its timed launches are compared with."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.analysis.judging.obstacles import room, too_large_for_one
from harness.analysis.samples import references
from harness.cases import Arm, CaseSpec, Device, Plan, Role
from harness.measure import together
from harness.measure.run import Run
from harness.measure.session import Session


@dataclass(frozen=True)
class Wanted:
    """A reference that is still to be launched; ``streamed`` where the model is too large.

    ``replicates`` of it show how much rounding changes a loss.
    """

    arm: Arm
    steps: int
    streamed: bool
    replicates: int


def missing(
    session: Session, plan: Plan, arms: Sequence[Arm], *, replicated: bool = False
) -> Iterator[tuple[list[Arm], Wanted]]:
    """Arms at once, and what is wanted of them: every launch of references that is still to come.

    Of those that go together the first stands for all, with the most steps. ``replicated``: they
    get replicates, since a launch was further off than sums in another order explain.
    """
    wanted = _wanted(session.run, plan, arms, replicated)
    for streamed, replicates in itertools.product((False, True), (0, references.REPLICATES)):
        alike = {
            w.arm.name: w for w in wanted if w.streamed is streamed and w.replicates == replicates
        }
        worlds = [replace(w.arm, case=_world(session.run, w)) for w in alike.values()]
        # A streamed one holds all of its model in the host's memory: there is room for one.
        slots = [[arm] for arm in worlds] if streamed else together.groups(session, plan, worlds)
        for slot in slots:
            steps = max(alike[arm.name].steps for arm in slot)
            arms = [alike[arm.name].arm for arm in slot]
            yield arms, replace(alike[slot[0].name], steps=steps)


def _wanted(run: Run, plan: Plan, arms: Sequence[Arm], replicated: bool) -> list[Wanted]:
    """Every reference that is not there; cases that train alike share one."""
    by_key: dict[str, Wanted] = {}
    for arm in arms:
        wanted = run.described[arm.case.hash].reference
        if wanted is None or arm.role is Role.ABLATION:
            continue
        steps = run.windows[plan.hash][arm.name].steps
        if run.settings.timeline:
            steps = max(steps, plan.profile(run.settings.outline).steps)
        streamed = too_large_for_one(run.described[arm.case.hash], arm.case, run.machine)
        if streamed:
            steps = min(steps, references.STREAMED_STEPS)
        replicates = _replicates(run, wanted.key) if replicated and not streamed else 0
        if _known(run, arm, replicates) >= steps:
            continue
        if streamed and not _host_holds(run, arm):
            _note(run, arm, "the plain model does not fit here: losses are not compared")
            continue
        if streamed:
            what = f"the losses of the first {steps} steps are compared"
            _note(run, arm, f"the plain model does not fit in one device: {what}")
        known = by_key.get(wanted.key, Wanted(arm, 0, streamed, replicates))
        by_key[wanted.key] = replace(known, steps=max(steps, known.steps))
    return list(by_key.values())


def _world(run: Run, wanted: Wanted) -> CaseSpec:
    """Where a reference trains: it takes fewer devices than what is compared with it."""
    case = wanted.arm.case
    return references.world(case, run.described[case.hash], wanted.streamed)


def _replicates(run: Run, key: str) -> int:
    """How many replicates a reference has: none if all bits of all its cases must be equal."""
    trained_so = (
        described.reference
        for described in run.described.values()
        if described.reference is not None
    )
    rounded = any(reference.limit for reference in trained_so if reference.key == key)
    return references.REPLICATES if rounded else 0


def _host_holds(run: Run, arm: Arm) -> bool:
    """Whether weights, gradients and moments fit in the host's memory, and no codec is in the way:
    it would have to see all shards at once.
    """
    facts = run.described[arm.case.hash].facts
    assert facts is not None
    return arm.case.compressor is None and room(16 * facts.num_params, 1, Device.CPU, run.machine)


def _note(run: Run, arm: Arm, text: str) -> None:
    run.notes += [note for note in [f"{arm.case.id}: {text}"] if note not in run.notes]


def _known(run: Run, arm: Arm, replicates: int) -> int:
    """Steps of the reference that is there; one that failed is not tried again.

    One without replicates is none for a case that needs them: else its limit would be 2 %.
    """
    launch = references.launch_of(run.launches, run.described, arm.case.hash)
    if launch is None:
        return 0
    curve = references.curve(run.folder, run.launches, run.described, arm.case.hash)
    if curve is None:
        return 2**31
    return 0 if replicates and curve.replicates is None else len(curve.losses)
