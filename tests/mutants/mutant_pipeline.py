"""A pipeline that forgets to divide its gradients by the number of micro-batches."""

from __future__ import annotations

from torch import nn

from harness.training.context import Knobs, RankContext
from harness.training.strategies import pipeline

SUPPORTS = dict(
    worlds="any", oracle="micro_batched", parts="microbatches", initial="same_seed", whole=True
)
KNOBS = dict(schedule="gpipe", microbatches=8)

expect = pipeline.expect


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> pipeline.PipelineTrainer:
    """GPipe with scale_grads=False."""
    trainer = pipeline.PipelineTrainer(model, ctx, knobs)
    trainer.schedule.scale_grads = False
    return trainer
