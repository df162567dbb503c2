"""Going on with an interrupted run."""

from pathlib import Path

from harness.base.errors import RecordError
from harness.cases import Site
from harness.host.machine import Machine
from harness.record import SCHEMA, RunRecord
from harness.record.store import load


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
            f"the run was started by an older version (schema {old.schema})",
            where=str(folder),
            expected=f"schema {SCHEMA}",
            fix="scaleproof run CASE",
        )
    if old.machine.hardware_class != machine.hardware_class:
        raise RecordError(
            f"the run was measured on {old.machine.hardware_class}",
            where=str(folder),
            expected=machine.hardware_class,
            fix="scaleproof run CASE",
        )
    return old


def where(run: RunRecord) -> Site:
    """The site that a run was begun on: what is left is measured there."""
    case = max((a.case for p in run.plans for a in p.arms), key=lambda c: c.world_size)
    asked = run.settings
    return Site(device=asked.device, backend=case.backend, nodes=asked.nodes, engine=asked.engine)
