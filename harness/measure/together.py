"""Concurrent launches: which arms of a plan run concurrently, and on which nodes and devices."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis import packing
from harness.analysis.judging import biases
from harness.analysis.judging.blockers import too_large_for_one
from harness.analysis.samples import references
from harness.base.documents import Json
from harness.base.errors import SpecError
from harness.cases import Arm, CaseSpec, Device, Plan, StandIn, Window
from harness.cases.script import LAUNCHED
from harness.host import copies
from harness.launch.wire.messages import Script
from harness.measure.order import Order
from harness.measure.run import Run
from harness.measure.session import Session
from harness.record import Purpose


def groups(
    session: Session, plan: Plan, arms: Sequence[Arm], apart: Collection[str] = ()
) -> list[list[Arm]]:
    """Return the arms in groups that run concurrently. Groups of small worlds come first.

    The worlds of a group run on separate nodes or devices. The arms that ``apart`` names, and arms
    in another environment (setup), run without concurrent worlds.
    """
    if not side_by_side(session, plan):
        return [[arm] for arm in arms]
    apart = {*apart, *(arm.name for arm in arms if arm.case.setup)}
    alone = [[arm] for arm in arms if arm.name in apart]
    rest = [arm for arm in arms if arm.name not in apart]
    slots = packing.slots([arm.case for arm in rest], session.settings.nodes)
    grouped = [*alone, *([rest[i] for i in sorted(slot)] for slot in slots)]
    return sorted(grouped, key=lambda slot: max(arm.case.world_size for arm in slot))


def side_by_side(session: Session, plan: Plan) -> bool:
    """Return whether worlds of this plan may run concurrently, because they would not slow each
    other.

    They may not if a case names its device or link, if ranks that compute would use the same cores,
    or if calibration launches have shown that concurrent worlds change the speed.
    """
    settings, run = session.settings, session.run
    on_gpus = all(arm.case.device is Device.CUDA for arm in plan.arms)
    several = len(settings.nodes) > 1 or on_gpus
    if not (settings.packed and several and movable(session, plan)):
        return False
    if len(_networks(session, plan)) > 1:
        return False
    if any(arm.case.first_device for arm in plan.arms) or biases.disturb(run.bare(), plan):
        return False
    paced = all(StandIn.PACED in arm.case.stand_in for arm in plan.arms)
    return paced or on_gpus or _cores_suffice(run)


def movable(session: Session, plan: Plan) -> bool:
    """Return whether the engine may choose the nodes of each world.

    Return False if a fault is injected into one node.
    """
    if not session.engine.engine.packs:
        return False
    knobs = (knob for network in _networks(session, plan) for knob in network)
    return not any(isinstance(value, str) and value for _, value in knobs)


def _networks(session: Session, plan: Plan) -> set[tuple[tuple[str, Json], ...]]:
    """Return the different network settings of this plan's worlds."""
    cases = (arm.case for arm in plan.arms)
    return {session.catalogue.network(case) for case in cases if len(case.nodes) > 1}


def orders(  # noqa: PLR0913  (fields of an order)
    session: Session,
    plan: Plan,
    arms: Sequence[Arm],
    purpose: Purpose,
    window: Window | None = None,
    turn: int = -1,
    attempt: int = 0,
    streamed: bool = False,
    replicates: int = 0,
    profiled: Collection[str] = (),
) -> list[Order]:
    """Return the descriptions (Orders) of launches that run concurrently, one for each arm.

    ``window`` replaces the window of the plan. For arms that are ``profiled`` (by name), the steps
    after the timed window are profiled in the same launch.
    """
    run = session.run
    usual = plan.pilot
    frozen = dict[str, Window]()
    if purpose is Purpose.PROFILE:
        usual = plan.profile(run.settings.outline)
    elif purpose in (Purpose.PROBE, Purpose.ROUND):
        usual = plan.window
    elif purpose is Purpose.TIMED:
        usual = plan.window
        frozen = dict(run.windows.get(plan.hash, {}))
    compared = purpose in references.COMPARED
    again = purpose is Purpose.PILOT and turn == 1
    windows = {arm.name: window or frozen.get(arm.name, usual) for arm in arms}
    scripts = {
        arm.name: _script(session, arm.case, windows[arm.name], again)
        for arm in arms
        if arm.case.script
    }
    wanted = [
        Order(
            plan=plan,
            arm=arm,
            purpose=purpose,
            turn=turn,
            attempt=attempt,
            streamed=streamed,
            replicates=replicates,
            window=windows[arm.name],
            reference=_curve(run, arm.case) if compared else None,
            script=scripts.get(arm.name),
            behind=_behind(run, plan, arm) if arm.name in profiled else None,
        )
        for arm in arms
    ]
    return _seated(session, plan, wanted)


def _behind(run: Run, plan: Plan, arm: Arm) -> Order:
    """Return the launch description (Order) for profiling the steps after a timed window."""
    return Order(
        plan=plan,
        arm=arm,
        purpose=Purpose.PROFILE,
        turn=0,
        window=plan.profile(run.settings.outline),
    )


def _curve(run: Run, case: CaseSpec) -> references.LossCurve | None:
    """Return the loss curve that a case is compared with, or None if none was trained."""
    described = run.described[case.hash]
    curve = references.curve(run.folder, run.launches, run.described, case.hash)
    if curve is None or not curve.limit or curve.replicates is not None:
        return curve
    return replace(curve, provisional=not too_large_for_one(described, case, run.machine))


def _script(session: Session, case: CaseSpec, window: Window, again: bool) -> Script:
    """Return the task of a user's script, in the folder in which its run was started.

    The second of two identical calibration launches runs in a fresh interpreter, once for each
    script of a run. This shows whether a forked interpreter trains the same. Raise SpecError for an
    engine whose agents do not start the ranks.
    """
    settings, engine = session.settings, session.engine
    if not engine.engine.slows_ranks:
        raise SpecError(
            f"--engine {engine.name} cannot start the ranks of a script",
            expected="another engine",
            fix=f"scaleproof run --script --cpus 2 -- {LAUNCHED}",
        )
    folder = settings.placed(settings.folder or str(Path.cwd()), case.setup)
    known = {arm.case.hash: arm.case.model for plan in session.run.plans for arm in plan.arms}
    scripts = {
        known.get(launch.case)
        for launch in session.run.launches
        if any(rank.watched is not None and rank.watched.way == "fresh" for rank in launch.ranks)
    }
    fresh = settings.fresh or (again and case.model not in scripts)
    if not settings.clean:
        copies.refuse_large(Path(folder), session.run.folder, settings.data)
    return Script(
        **vars(window),
        folder=folder,
        fresh=fresh,
        clean=settings.clean,
        data=settings.data,
        writes=settings.writes,
    )


def _seated(session: Session, plan: Plan, orders: Sequence[Order]) -> list[Order]:
    """Return the orders with a placement on nodes and devices, drawn with the plan's seed.

    Every order is assigned its nodes. If several worlds run concurrently, each is also assigned its
    devices.
    """
    nodes = session.settings.nodes
    if len(nodes) * len(orders) == 1 or not movable(session, plan):
        return list(orders)
    worlds = [_world(session.run, order) for order in orders]
    names = tuple(order.arm.name for order in orders)
    first = orders[0]
    draw = packing.lot(plan.protocol.seed, first.purpose, first.attempt, first.turn, names)
    seats = packing.seats(worlds, nodes, draw)
    if seats is None:  # The worlds do not fit on the nodes; the engine reports the error.
        return list(orders)
    if len(orders) == 1:
        seats = [packing.Placement(seats[0].hosts, ())]
    return [replace(order, seat=seat) for order, seat in zip(orders, seats, strict=True)]


def _world(run: Run, order: Order) -> CaseSpec:
    """Return the case that is placed on nodes and devices.

    If the launch trains a reference, this is the case of the reference, which may need fewer
    devices than the case whose losses are compared with it.
    """
    case = order.arm.case
    if order.purpose is not Purpose.REFERENCE:
        return case
    return references.world(case, run.described[case.hash], order.streamed)


def _cores_suffice(run: Run) -> bool:
    """Return whether every rank has a separate core if all nodes are full."""
    nodes = run.settings.nodes
    if run.nodes:
        return all(n <= m.num_cores for n, m in zip(nodes, run.nodes, strict=False))
    return sum(nodes) <= run.machine.num_cores
