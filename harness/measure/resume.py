"""Going on with an interrupted run."""

import dataclasses
from pathlib import Path

from harness.base.documents import from_doc
from harness.base.errors import RecordError
from harness.host.machine import Machine
from harness.record import SCHEMA, Block, Described, LaunchRecord, Row, RunRecord, Trial, chain
from harness.record.chain import Kind
from harness.record.store import load
from harness.spec import Site, Window


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
    return _with_chain(old, folder)


def _with_chain(old: RunRecord, folder: Path) -> RunRecord:
    """The record with what was measured after it was last written: nothing is ever dropped.

    A run may not be repeated, nor stopped, until it passes.
    """
    links = chain.read(folder)
    if not links:
        return old
    windows = dict(old.windows)
    for body in chain.bodies(links, Kind.WINDOWS):
        windows |= from_doc(dict[str, dict[str, Window]], body)
    described = dict(old.described)
    for body in chain.bodies(links, Kind.DESCRIBED):
        described |= from_doc(dict[str, Described], body)
    return dataclasses.replace(
        old,
        described=described,
        launches=tuple(from_doc(LaunchRecord, b) for b in chain.bodies(links, Kind.LAUNCH)),
        blocks=tuple(from_doc(Block, b) for b in chain.bodies(links, Kind.BLOCK)),
        fabric=tuple(from_doc(Row, r) for b in chain.bodies(links, Kind.SWEEP) for r in b),
        recoveries=tuple(from_doc(Trial, b) for b in chain.bodies(links, Kind.TRIAL)),
        windows=windows,
    )


def where(run: RunRecord) -> Site:
    """The site that a run was begun on: what is left is measured there."""
    case = max((a.case for p in run.plans for a in p.arms), key=lambda c: c.world_size)
    asked = run.settings
    return Site(device=asked.device, backend=case.backend, nodes=asked.nodes, engine=asked.engine)
