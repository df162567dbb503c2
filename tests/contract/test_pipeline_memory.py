"""A pipeline's last stage keeps no logits of micro-batches after their backward pass."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from harness.training.parallel.schedule import Schedule


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("kept", "most"), [(True, 8), (False, 0)])
@pytest.mark.usefixtures("group")
def test_outputs_that_are_not_requested_are_freed(kept: bool, most: int) -> None:
    """torch frees outputs with the argument that the trainer passes, and keeps them without it."""
    seen: list[weakref.ref[torch.Tensor]] = []

    class Head(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            seen.append(weakref.ref(out))
            return out

    plan = Schedule.of({"schedule": "1f1b", "microbatches": 8}, 1)
    stage = PipelineStage(Head(4, 4), 0, 1, torch.device("cpu"))
    schedule = plan.made(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)
    schedule.step(torch.ones(8, 4), target=torch.ones(8, 4), losses=[], return_outputs=kept)
    gc.collect()
    alive = sum(ref() is not None for ref in seen[-8:])
    assert alive == most


def test_the_trainer_does_not_request_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.training.strategies.pipeline import PipelineTrainer

    asked = {}

    class Noted:
        def step(self, *_: object, **more: object) -> None:
            asked.update(more)

    trainer = PipelineTrainer.__new__(PipelineTrainer)
    nothing = type("N", (), {"zero_grad": lambda self, **_: None, "step": lambda self: None})()
    trainer.optimizer, trainer.schedule = nothing, Noted()
    trainer.first = trainer.last = False
    from contextlib import nullcontext
    from types import SimpleNamespace

    trainer.ctx = SimpleNamespace(forward=nullcontext)
    trainer.step(SimpleNamespace(inputs=None, targets=None))
    assert asked == {"return_outputs": False}
