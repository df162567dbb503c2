"""Going on with an interrupted run."""

import dataclasses
from collections import Counter
from pathlib import Path

from harness.analysis.judging.pairs import timed
from harness.base.errors import RecordError
from harness.host.machine import Machine
from harness.record import SCHEMA, LaunchRecord, RunRecord
from harness.record.store import load
from harness.spec import Site


def unfinished(folder: Path, machine: Machine) -> RunRecord:
    """The record of an interrupted run of this machine, less what has to be measured again.

    Raises RecordError for a run that is complete, of another machine, or of an older version.
    """
    old = load(folder)
    if old.complete:
        raise RecordError(
            "this run is complete", where=str(folder), fix=f"scaleproof report {folder}"
        )
    if old.schema != SCHEMA:
        raise RecordError(
            f"the run was started by an older version (schema {old.schema})", where=str(folder),
            expected=f"schema {SCHEMA}", fix="scaleproof run CASE",
        )  # fmt: skip
    if old.machine.hardware_class != machine.hardware_class:
        raise RecordError(
            f"the run was measured on {old.machine.hardware_class}", where=str(folder),
            expected=machine.hardware_class, fix="scaleproof run CASE",
        )  # fmt: skip
    launches, repeated = carried_over(old)
    notes = old.notes
    if repeated:
        notes = (*notes, f"resumed: {repeated} launches of an unfinished block repeated")
    return dataclasses.replace(old, launches=tuple(launches), notes=notes)


def where(run: RunRecord) -> tuple[Site, str | None]:
    """The site that a run was begun on, and its cluster file: what is left is measured there."""
    case = max((a.case for p in run.plans for a in p.arms), key=lambda c: c.world_size)
    asked = run.settings
    site = Site(device=asked.device, backend=case.backend, nodes=asked.nodes, engine=asked.engine)
    return site, asked.cluster


def carried_over(run: RunRecord) -> tuple[list[LaunchRecord], int]:
    """What a resumed run keeps of an interrupted one, and how many launches it repeats.

    Gates, pilots, whole blocks, and whatever failed: a run may not be repeated until it passes.
    Good launches of a half-measured block are dropped whole, so that no pair spans two sittings.
    """
    dropped = set()
    for plan in run.plans:
        launches = timed(run, plan, None)
        of_block: dict[tuple[int, int], Counter[str]] = {}
        for x in launches:
            of_block.setdefault((x.attempt, x.block), Counter())[x.arm] += 1
        dropped |= {
            x.launch
            for x in launches
            if x.usable and set(of_block[x.attempt, x.block].values()) != {2}
        }
    return [x for x in run.launches if x.launch not in dropped], len(dropped)
