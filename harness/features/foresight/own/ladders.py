"""Predict a size that the measured scaling sweeps of the user lack.

sweep, and the same case at another size -> Table -> prediction, with the memory of a rank there
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.cases import CaseSpec, Catalogue, Device
from harness.features.foresight.outlook import MissingInputError, Outlook, outlooks
from harness.features.foresight.own import runs, stated
from harness.features.foresight.own.runs import MeasuredRung
from harness.features.foresight.published.table import Refused
from harness.host.machine import Machine
from harness.record import RunRecord

#: Default efficiency for which a prediction lists the changes that would reach it.
HOLD = 0.9


def foresee(
    name: str,
    ladder: Sequence[MeasuredRung],
    target: MeasuredRung,
    catalogue: Catalogue,
    *,
    on: Collection[int] = (),
    hold: float = HOLD,
) -> list[Outlook] | Refused:
    """Predict one size from a scaling sweep.

    Return Refused if no prediction is possible. Raise SpecError if the ranks of the target cannot
    be divided in the same way as the ranks of the sweep.
    """
    answer = target.described
    answered = answer.expected is not None or bool(answer.refused)
    table = runs.table(name, ladder, catalogue, on=on, target=target if answered else None)
    if isinstance(table, Refused):
        return table
    try:
        foreseen = outlooks(table, target.case.world_size, hold)
    except MissingInputError as unsaid:
        return Refused(id=name, why=str(unsaid))
    expected = target.described.expected
    room = room_bytes(target.case, target.run.machine)
    needed = None if expected is None else expected.memory_bytes
    padding = stated.padding({rung.case.world_size: rung.stated for rung in (ladder[-1], target)})
    return [
        replace(outlook, memory_bytes=needed, room_bytes=room, padding=padding)
        for outlook in foreseen
    ]


def room_bytes(case: CaseSpec, machine: Machine) -> float | None:
    """Return the bytes of memory that a rank has, or None if unknown.

    This is the memory of its devices. A rank on CPUs has an equal part of the host's memory.
    """
    if case.device is Device.CPU:
        return machine.memory_gib * 2**30 / max(case.nodes)
    if machine.gpu_memory_gib is None:
        return None
    return machine.gpu_memory_gib * 2**30 * case.devices_per_rank


def planned(run: RunRecord) -> Iterator[tuple[MeasuredRung, list[Outlook] | Refused]]:
    """Yield predictions of the sizes that a run's recipes list (``ladder(...,
    predict=(64, 8))``).
    """
    catalogue = Catalogue([path for path in map(Path, run.settings.paths) if path.is_dir()])
    for plan in run.plans:
        case = plan.target
        if case is None or (described := run.described.get(case.hash)) is None:
            continue  # no size is listed, or the run was interrupted before it was described
        arms = {arm.case.hash for arm in plan.arms if arm.case.strategy == case.strategy}
        ladder = [rung for rung in runs.rungs(run) if rung.case.hash in arms]
        ladder.sort(key=lambda rung: rung.case.world_size)
        target = MeasuredRung(run, case, described, None)
        yield target, foresee(plan.name, ladder, target, catalogue)
