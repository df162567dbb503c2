"""Everything that a rank does on a device, run on a device that refuses what a GPU refuses.

CI runs one case of each kind; ``-m full`` runs all strategies, compressors, optimizers, models and
inputs. Not covered: races between streams, asynchronous errors, compiled blocks, CUDA kernels,
NCCL, speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.close import budget_of
from harness.base.documents import from_doc, to_doc
from harness.base.errors import ScaleproofError
from harness.cases import CaseSpec, Catalogue, Mesh
from harness.host import nvml
from harness.launch.wire.messages import (
    Bits,
    Gate,
    Refer,
    Script,
    Sweep,
    Task,
    Timed,
    Train,
    readings_file,
)
from harness.record import RankRestart
from tests.strict.world import Worlds

KNOWN = Catalogue()
FRAMEWORKS = {"accelerate", "deepspeed", "lightning_fabric", "megatron", "ray_train"}
MODELS = {
    "expert_parallel": "moe-nano",
    "context_parallel": "decoder-nano",
    "table_parallel": "dlrm-nano",
}
STRATEGIES = [n for n in KNOWN.entries["strategies"] if n not in FRAMEWORKS and n != "compressed"]
CODECS = [n for n, e in KNOWN.entries["compressors"].items() if not e.head.get("CONTROL")]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    made = Worlds(tmp_path_factory.mktemp("strict"), 2, KNOWN)
    yield made
    made.close()


def gate(case: CaseSpec) -> Task:
    return Gate(twin=KNOWN.twin(case))


def timed(case: CaseSpec) -> Task:
    return Timed(steps=6, cut=2, draw=1)


def named(strategy: str) -> tuple[str, int]:
    """Return a case of a strategy, and its number of ranks."""
    model = MODELS.get(strategy, "mlp-nano")
    return f"{strategy}/{model}", 1 if strategy == "single" else 2


def some(values: list[str], kept: tuple[str, ...]) -> list[Any]:
    """Return all values, with a mark on those that CI omits."""
    return [v if v in kept else pytest.param(v, marks=pytest.mark.full) for v in values]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    some(STRATEGIES, ("ddp", "fsdp", "pipeline", "tensor_parallel", "local_sgd")),
)  # fmt: skip
def test_every_strategy_trains_right(worlds: Worlds, strategy: str) -> None:
    name, ranks = named(strategy)
    assert worlds.launch(worlds.case(name, ranks), gate).wrong == []


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    made = Worlds(tmp_path_factory.mktemp("four"), 4, KNOWN)
    yield made
    made.close()


LARGER = [s for s in STRATEGIES if s != "single"]


@pytest.mark.full
@pytest.mark.parametrize("strategy", LARGER)
def test_every_strategy_trains_right_on_four(four: Worlds, strategy: str) -> None:
    """Covers groups within the world, asymmetric neighbours and middle stages."""
    name, _ = named(strategy)
    assert four.launch(four.case(name, 4), gate).wrong == []


PRODUCTS = [(s, mesh) for s in STRATEGIES for mesh in KNOWN.get("strategies", s).supports.products]


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "mesh"), PRODUCTS)
def test_combined_dimensions_train_right(four: Worlds, strategy: str, mesh: str) -> None:
    """Trains with several parallel dimensions at once."""
    ranks = Mesh.parse(mesh).ranks
    model = "moe-nano" if strategy == "expert_parallel" else "decoder-nano"
    if ranks > 4:
        pytest.skip(f"{ranks} ranks: this machine has 4 devices")
    assert four.launch(four.case(f"{strategy}/{model}", ranks, mesh=mesh), gate).wrong == []


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy", some(STRATEGIES, ("single", "ddp", "fsdp", "zero1", "parameter_server"))
)
def test_every_strategy_is_timed(worlds: Worlds, strategy: str) -> None:
    """The records contain a time, the device's peak memory, and the settings that took effect."""
    name, ranks = named(strategy)
    left = worlds.launch(worlds.case(name, ranks), timed)
    assert left.wrong == [] and len(left.ranks) == ranks
    assert all(r.window_s > 0 and r.peak_bytes and r.device == "NVIDIA Strict" for r in left.ranks)
    assert all(r.ran is not None for r in left.ranks)
    assert len({r.device_uuid for r in left.ranks}) == ranks, "each has a device of its own"


@pytest.mark.parametrize(("name", "places"), [("ddp/mlp-nano", {0, 1}), ("single/mlp-nano", {0})])
def test_devices_of_the_ranks_are_read_during_the_window(
    worlds: Worlds, name: str, places: set[int]
) -> None:
    """A separate process reads them during the whole window; idle devices are not read."""
    left = worlds.launch(worlds.case(name, len(places)), timed)
    polls = nvml.followed(readings_file(left.out, 0))
    assert {r["index"] for poll in polls for r in poll} == places
    begins, ends = left.ranks[0].window_ns
    assert polls[0][0]["time_ns"] <= begins and polls[-1][0]["time_ns"] >= ends
    assert all(w.energy_j is not None for w in nvml.summarise(polls, left.ranks[0].window_ns))


@pytest.mark.parametrize("codec", some(CODECS, ("topk",)))
def test_every_codec_trains_right(worlds: Worlds, codec: str) -> None:
    assert worlds.launch(worlds.case(f"compressed:{codec}/mlp-nano"), gate).wrong == []


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        pytest.param("ddp/decoder-nano", {"precision": "autocast"}, marks=pytest.mark.full),
        pytest.param("fsdp/decoder-nano", {"precision": "bf16"}, marks=pytest.mark.full),
        pytest.param("ddp/decoder-nano", {"optimizer": "lamb", "clip": 1.0}, marks=pytest.mark.full),
        pytest.param("ddp/mlp-nano", {"precision": "fp16"}, marks=pytest.mark.full),
        pytest.param("ddp/mlp-nano", {"precision": "fp8"}, marks=pytest.mark.full),
        pytest.param("fsdp/mlp-nano", {"optimizer": "lars"}, marks=pytest.mark.full),
        pytest.param("ddp/decoder-nano", {"checkpoint": True}, marks=pytest.mark.full),
        pytest.param("ddp/decoder-nano", {"offload": True}, marks=pytest.mark.full),
        ("fsdp/mlp-nano", {"knobs": {"fsdp.offload": True}}),
        pytest.param("ddp/mlp-nano", {"accumulate": 2}, marks=pytest.mark.full),
        pytest.param("ddp/mlp-nano", {"stepping": "fused"}, marks=pytest.mark.full),
        pytest.param("ddp/mlp-nano", {"stepping": "foreach"}, marks=pytest.mark.full),
        pytest.param("tensor_parallel/decoder-nano", {}, marks=pytest.mark.full),
        pytest.param("pipeline/decoder-nano", {}, marks=pytest.mark.full),
        pytest.param("ddp/resnet-nano", {}, marks=pytest.mark.full),
        pytest.param("ddp/ragged-nano", {}, marks=pytest.mark.full),
        pytest.param("ddp/moe-nano", {}, marks=pytest.mark.full),
        pytest.param("ddp/paced-small", {}, marks=pytest.mark.full),
        *[
            pytest.param("ddp/mlp-nano", {"data": data}, marks=pytest.mark.full)
            for data in KNOWN.entries["inputs"]
        ],
        ("single/decoder-nano", {"precision": "autocast", "attention": "flash"}),
    ],
)  # fmt: skip
def test_how_it_is_computed(worlds: Worlds, name: str, fields: dict[str, Any]) -> None:
    ranks = 1 if name.startswith("single") else 2
    assert worlds.launch(worlds.case(name, ranks, **fields), gate).wrong == []


@pytest.mark.parametrize(
    "name", ["ddp/mlp-nano", pytest.param("pipeline/mlp-nano", marks=pytest.mark.full)]
)
def test_profiles(worlds: Worlds, name: str) -> None:
    """A trace without kernels (no CUPTI, or in use by another profiler) yields no time budget."""
    left = worlds.launch(worlds.case(name), lambda _: Timed(steps=8, cut=2, draw=1, profiled=3))
    assert left.wrong == [] and all((left.out / f"rank{r}.trace.json.gz").is_file() for r in (0, 1))
    assert all((left.out / f"rank{r}.memory.pickle").is_file() for r in (0, 1))
    with pytest.raises(ScaleproofError, match="no device activity"):
        budget_of(worlds.folder, left.out.name, left.ranks, 3, talks=True)


@pytest.mark.full
def test_every_rank_has_the_same_bits(worlds: Worlds) -> None:
    left = worlds.launch(worlds.case("ddp/decoder-nano"), lambda _: Bits(steps=3))
    assert left.wrong == []


def test_the_reference_is_trained(worlds: Worlds) -> None:
    case = worlds.case("ddp/decoder-nano")
    assert worlds.launch(case, lambda _: Refer(of=case, steps=3)).wrong == []


@pytest.mark.full
def test_collectives_are_swept_and_checked(worlds: Worlds) -> None:
    left = worlds.launch(worlds.case("ddp/mlp-nano"), lambda _: Sweep(only="all_reduce"))
    assert left.cause is None


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.full)])
def test_a_training_resumes_from_a_checkpoint(
    worlds: Worlds, strategy: str, tmp_path: Path
) -> None:
    """A resumed training ends bit for bit like one that was never interrupted."""
    case = worlds.case(f"{strategy}/mlp-nano")

    def train(steps: int, folder: str, resume: bool = False) -> Callable[[CaseSpec], Task]:
        task = Train(steps=steps, folder=str(tmp_path / folder), save_after=2, resume=resume)
        return lambda _: task

    whole = worlds.launch(case, train(6, "whole"))
    half = worlds.launch(case, train(3, "half"))
    rest = worlds.launch(case, train(6, "half", resume=True))
    assert [x.cause for x in (whole, half, rest)] == [None] * 3
    first, second, third = (
        [from_doc(RankRestart, json.loads((x.out / f"rank{r}.json").read_text())) for r in (0, 1)]
        for x in (whole, half, rest)
    )
    assert [r.loaded for r in third] == [r.saved for r in second] and second[0].saved
    assert [r.last for r in third] == [r.last for r in first] and first[0].last


TRAINING = """
import torch, torch.distributed as dist, os
dist.init_process_group("nccl")
device = torch.device("strict", 0)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
optimizer = torch.optim.AdamW(model.parameters())
mine = torch.Generator().manual_seed(dist.get_rank())
for _ in range(10**6):
    loss = model(torch.randn(8, 64, generator=mine).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_script_of_a_user_s(worlds: Worlds, fresh: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    case = from_doc(CaseSpec, {**to_doc(worlds.case("ddp/mlp-nano")), "script": "train.py"})
    task = Script(folder=str(tmp_path), steps=6, cut=2, fresh=fresh)
    left = worlds.launch(case, lambda _: task)
    assert left.cause is None, left.cause
    watched = [r.watched for r in left.ranks]
    assert all(w is not None for w in watched)


def test_a_launch_on_the_last_devices_uses_only_these(tmp_path: Path) -> None:
    """The device refuses every index except the rank's own."""
    worlds = Worlds(tmp_path, num_gpus=4)
    try:
        case = worlds.case("ddp/mlp-nano")
        left = worlds.launch(case, lambda _: Timed(steps=4, cut=2, draw=1), devices=(2,))
    finally:
        worlds.close()
    assert left.cause is None, left.cause
    assert [int(rank.device_uuid[-1]) for rank in left.ranks] == [2, 3]
