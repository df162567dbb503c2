"""The predicted memory of activations is what autograd really keeps, for models and precisions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.cases import CaseSpec, Catalogue, Device, Precision, Site
from harness.training.context import CAST, Loaded, build_model, load, make_batch
from harness.training.describe import describe
from harness.training.models import decoder
from harness.training.tuning.recompute import _selective
from harness.training.work import kept

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(1,))
MODELS = sorted(KNOWN.entries["models"])
SAMPLES = 4


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    """Clear the caches of models, because agents count in processes that train nothing."""
    decoder._rotary.cache_clear()
    yield
    decoder._rotary.cache_clear()


def case_of(model: str, precision: Precision) -> tuple[Loaded, CaseSpec]:
    size = next(iter(KNOWN.get("models", model).head["SIZES"]))
    case = KNOWN.normalise(SITE.case(f"single/{model}-{size}", precision=precision))
    loaded = load(KNOWN.files(case))
    return loaded, loaded.at_once(case)


def really_kept(loaded: Loaded, case: CaseSpec) -> int:
    """Return the bytes of all storages that forward and loss save, on real tensors."""
    model = build_model(loaded, case, 0)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    dtype = CAST.get(case.precision)
    cast = contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)
    batch = make_batch(loaded, case, torch.arange(SAMPLES), torch.device("cpu"))
    with cast, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loaded.model.loss(model(batch.inputs), batch.targets)
    return sum(t.untyped_storage().nbytes() for k, t in seen.items() if k not in weights)


@pytest.mark.few(6)
@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.FP8])
@pytest.mark.parametrize("model", MODELS)
def test_memory_counted_without_data_is_what_is_kept(model: str, precision: Precision) -> None:
    loaded, case = case_of(model, precision)
    real = really_kept(loaded, case)
    decoder._rotary.cache_clear()
    held = kept(loaded, case)
    assert held.per_sample * SAMPLES + held.constant == pytest.approx(real, rel=0.15, abs=4096)


@pytest.mark.few(5)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_add_up_to_the_model(model: str) -> None:
    """A pipeline stage keeps the parts of its blocks."""
    held = kept(*case_of(model, Precision.FP32))
    assert sum(held.blocks) == pytest.approx(held.per_sample, rel=0.02) and held.again == 0


def test_stages_hold_their_blocks_of_the_micro_batches_in_flight() -> None:
    """GPipe keeps all micro-batches, 1F1B as many as there are stages from this one on."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(4,))

    def needs(schedule: str) -> int:
        knobs = {"pipeline.schedule": schedule, "pipeline.microbatches": 16}
        case = site.case("pipeline/decoder-tiny", knobs=knobs, micro_batch=16)
        case = KNOWN.normalise(case)
        loaded = load(KNOWN.files(case))
        answer = describe(loaded, case)
        assert answer.expected is not None, answer.unsupported
        return answer.expected.memory_bytes

    assert needs("1f1b") < 0.6 * needs("gpipe")


def test_checkpoints_keep_the_tensors_between_blocks() -> None:
    loaded, case = case_of("decoder", Precision.FP32)
    whole, checked = (kept(loaded, replace(case, checkpoint=c)).per_sample for c in (False, True))
    assert checked < 0.5 * whole


def test_a_copy_of_the_weights_does_not_grow_with_the_batch() -> None:
    loaded, case = case_of("decoder", Precision.AUTOCAST)
    parameters = sum(p.numel() for p in build_model(loaded, case, 0).parameters())
    assert 0.5 * 2 * parameters < kept(loaded, case).constant <= 1.1 * 2 * parameters


@pytest.mark.parametrize("model", ["decoder", "mlp"])
def test_selective_checkpoints_keep_matrix_products_and_outputs(model: str) -> None:
    """The counted bytes are those that torch's selective checkpointing really keeps."""
    loaded, case = case_of(model, Precision.FP32)
    selective = replace(case, checkpoint=True, selective=True)
    counted, every = kept(loaded, selective), kept(loaded, case)
    none = kept(loaded, replace(case, checkpoint=True))
    decoder._rotary.cache_clear()
    network = build_model(loaded, case, 0)
    batch = make_batch(loaded, case, torch.arange(SAMPLES), torch.device("cpu"))
    put_aside, x = 0, batch.inputs
    for block in network.children():
        first, _ = _selective()
        with first:
            x = block(x)
        stored = [t for of_operator in first.storage.values() for t in of_operator.values()]
        put_aside += sum(_bytes(t) for t in stored) + x.nbytes
    held = (counted.per_sample - counted.again) * SAMPLES
    assert held == pytest.approx(put_aside, rel=0.02)
    assert none.per_sample < counted.per_sample
    assert model == "mlp" or counted.per_sample < every.per_sample


def _bytes(stored: object) -> int:
    """Return the bytes of a tensor that selective checkpointing keeps in torch's wrapper."""
    value = getattr(stored, "val", stored)
    return value.nbytes if isinstance(value, Tensor) else 0
