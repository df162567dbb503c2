"""Launches on the strict device, by an agent of the harness on a machine that has it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from harness.base.documents import from_doc
from harness.cases import CaseSpec, Catalogue, Device, Site
from harness.launch import causes
from harness.launch.dialers import InheritingJob
from harness.launch.engine import Command, Where, importable
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import LaunchSpec, Play, RankEnd, Sweep, Task, Train
from harness.record import Cause, Described, RankRecord
from tests.strict.machine import environment


def _leaves_records(task: Task) -> bool:
    """Whether a task writes rank records: sweeps, trainings and plays write other documents."""
    return not isinstance(task, Sweep | Train | Play)


@dataclasses.dataclass
class Left:
    """The results of a launch."""

    case: CaseSpec
    out: Path
    ends: tuple[RankEnd, ...]
    cause: Cause | None
    ranks: list[RankRecord]

    @property
    def wrong(self) -> list[str]:
        """The cause that ended it, or the failed checks."""
        if self.cause is not None:
            return [self.cause.message]
        failed = [c for r in self.ranks for c in r.checks if not c.ok]
        return [f"{c.name}: {c.value} > {c.limit} {c.detail}" for c in failed]


class Worlds:
    """Launches cases on one machine of ``num_gpus`` strict devices.

    ``package`` is a folder with another copy of the package, which its agent imports instead.
    """

    def __init__(
        self,
        folder: Path,
        num_gpus: int = 2,
        known: Catalogue | None = None,
        package: Path | None = None,
    ) -> None:
        self.known, self.folder = known or Catalogue(), folder
        here = environment(folder / "library", num_gpus)
        env = {**here, **importable()}
        copy = [str(package)] if package else []
        env["PYTHONPATH"] = os.pathsep.join([here["PYTHONPATH"], *copy, env.get("PYTHONPATH", "")])
        # Otherwise the working directory precedes every other folder.
        env["PYTHONSAFEPATH"] = "1"
        command = Command(
            nodes=(0,), argv=(sys.executable, "-m", "harness.training.agent.agent"), env=env
        )
        where = Where(nodes=(num_gpus,), device=Device.CUDA)
        self.fleet = Fleet(lambda: (InheritingJob([command]), None), where)
        self._count = itertools.count()

    def case(self, name: str, ranks: int = 2, **fields: object) -> CaseSpec:
        site = Site(device=Device.CUDA, backend="nccl", nodes=(ranks,))
        return self.known.normalise(site.case(name, **fields))

    def describe(self, case: CaseSpec) -> Described:
        return self.fleet.describe([(case, self.known.files(case))])[0]

    def launch(
        self,
        case: CaseSpec,
        task: Callable[[CaseSpec], Task],
        out: Path | None = None,
        devices: tuple[int, ...] = (),
    ) -> Left:
        """Launch a case; ``devices`` is the first device used on each node."""
        out = out or self.folder / "launches" / f"{next(self._count)}"
        spec = LaunchSpec(
            launch=out.name, case=case, out=str(out), task=task(case), files=self.known.files(case),
            devices=devices, hosts=tuple(range(len(devices))),
        )  # fmt: skip
        ended = self.fleet.launch(spec, lambda step: None)
        paths = sorted(out.glob("rank?.json")) if _leaves_records(spec.task) else []
        return Left(
            case=case, out=out, ends=ended.ranks,
            cause=causes.attribute(ended.ranks, ended.unreachable),
            ranks=[from_doc(RankRecord, json.loads(path.read_text())) for path in paths],
        )  # fmt: skip

    def close(self) -> None:
        self.fleet.close()
