"""Going on with an interrupted run."""

from collections.abc import Iterator
from pathlib import Path

from harness.analysis.verify import misfigured
from harness.base import files
from harness.base.errors import RecordError
from harness.cases import Site
from harness.host.environment import changes_speed, recorded
from harness.host.machine import Machine, software
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
    if (reason := next(_edited(old), None)) is not None:
        raise RecordError(
            f"{reason} since the run was begun: its launches would be of two trainings",
            where=str(folder),
            expected="the files and versions that it was begun with",
            fix="scaleproof run CASE",
        )
    if reason := misfigured(old, folder):
        raise RecordError(
            f"NOT VERIFIED: {reason}: what is measured now would be judged together with it",
            where=str(folder),
            expected="launches whose figures follow from their samples",
            fix=f"scaleproof verify {folder}",
        )
    return old


def _edited(run: RunRecord) -> Iterator[str]:
    """Which of the user's files, of the versions and variables are not those of its launches."""
    now = software()
    for name in ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        before = run.software.get(name, "")
        if before and before != now.get(name, ""):
            yield f"{name} is {now.get(name, 'gone')}, and was {before}"
    environment_now = {key: value for key, value in recorded().items() if changes_speed(key)}
    there = {key: value for key, value in run.environment.items() if changes_speed(key)}
    for name in sorted(environment_now.keys() | there.keys()):
        if environment_now.get(name) != there.get(name):
            before = there.get(name, "not set")
            yield f"{name} is {environment_now.get(name, 'not set')}, and was {before}"
    ranks = (rank for launch in run.launches for rank in launch.ranks)
    sources = {name: digest for rank in ranks for name, digest in (rank.sources or {}).items()}
    if sources.get("scaleproof", files.digest_of_package()) != files.digest_of_package():
        yield "scaleproof was changed"
    for name, digest in sources.items():
        here_now = files.digest_of_file(Path(run.settings.folder or ".") / name)
        # None is there of another node's, or of a copy that a launch had.
        if name.endswith(".py") and here_now not in ("", digest):
            yield f"{name} was edited"


def where(run: RunRecord) -> Site:
    """The site that a run was begun on: what is left is measured there."""
    case = max((arm.case for plan in run.plans for arm in plan.arms), key=lambda c: c.world_size)
    asked = run.settings
    return Site(device=asked.device, backend=case.backend, nodes=asked.nodes, engine=asked.engine)
