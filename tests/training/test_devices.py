"""CPU ranks on machines whose torch sees GPUs do not use the GPUs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.analysis.timeline.close import budget_of
from harness.base.documents import from_doc
from harness.cases import Catalogue, Device, Site
from harness.launch import causes
from harness.launch.dialers import InheritingJob
from harness.launch.engine import Command, Where, importable
from harness.launch.fleet import Fleet
from harness.launch.wire.messages import Gate, LaunchSpec, Task, Timed
from harness.record import RankRecord

LYING = str(Path(__file__).with_name("lying_agent.py"))
KNOWN = Catalogue()
STRATEGIES = ("single", "ddp", "fsdp", "pipeline", "compressed:topk")


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, Callable[..., Task]], list[RankRecord]]]:
    """Return ``world("ddp", task)``, which returns the records of the ranks."""
    folder = tmp_path_factory.mktemp("hidden")
    command = Command(nodes=(0,), argv=(sys.executable, LYING), env=importable())
    fleet = Fleet(lambda: (InheritingJob([command]), None), Where(nodes=(2,), device=Device.CPU))
    count = itertools.count()

    def launch(strategy: str, task: Callable[..., Task], **fields: object) -> list[RankRecord]:
        site = Site(device=Device.CPU, backend="gloo", nodes=(1 if strategy == "single" else 2,))
        case = KNOWN.normalise(site.case(f"{strategy}/mlp-nano", **fields))
        out = folder / "launches" / f"{strategy.replace(':', '-')}{next(count)}"
        spec = LaunchSpec(
            launch=out.name, case=case, out=str(out), task=task(case), files=KNOWN.files(case)
        )
        ended = fleet.launch(spec, lambda step: None)
        assert causes.attribute(ended.ranks, ended.unreachable) is None
        paths = sorted(out.glob("rank?.json"))
        return [from_doc(RankRecord, json.loads(path.read_text())) for path in paths]

    launch.folder = folder  # type: ignore[attr-defined]
    yield launch
    fleet.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_cpu_strategy_is_correct_if_torch_sees_gpus(world: object, strategy: str) -> None:
    """Sharding, buckets and process groups use the case's device, not that of torch's build."""
    ranks = world(strategy, lambda case: Gate(twin=KNOWN.twin(case)))  # type: ignore[operator]
    assert [c for rank in ranks for c in rank.checks if not c.ok] == []
    assert {rank.device for rank in ranks} == {"cpu"}


def test_a_timed_cpu_world_completes_if_torch_sees_gpus(world: object) -> None:
    ranks = world("ddp", lambda case: Timed(steps=6, cut=2, draw=1))  # type: ignore[operator]
    assert len(ranks) == 2 and all(rank.window_s > 0 for rank in ranks)
    assert dataclasses.asdict(ranks[0])["affinity"]


def test_a_profile_of_cpu_ranks_is_of_the_host(world: object) -> None:
    ranks = world("ddp", lambda case: Timed(steps=12, cut=2, draw=1, profiled=4))  # type: ignore[operator]
    folder = world.folder  # type: ignore[attr-defined]
    launch = max((folder / "launches").glob("ddp*"), key=lambda p: p.stat().st_mtime_ns).name
    assert budget_of(folder, launch, ranks, 4, talks=True).device == "cpu"
