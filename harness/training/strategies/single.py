"""One device, no wrapper: the plain baseline of other strategies."""

from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext, Trainer
from harness.training.trainer import LocalTrainer, parameter_bytes, training_bytes

SUPPORTS = dict(
    worlds="one",
    oracle="shard_ordered",
    initial="own",
    uneven=True,
    forward=True,
    precisions=("fp32", "bf16", "autocast", "fp16", "fp8"),
    baselines=("plain",),
)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect no communication."""
    memory = training_bytes(parameter_bytes(model), 1, facts, batching.largest)
    return Expected(
        sent_bytes=(0.0,),
        payload_bytes={},
        largest_message=0,
        module=type(model).__name__,
        ideal_efficiency=1.0,
        memory_bytes=memory,
        formula="0",
        global_batch=batching.global_batch,
    )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> Trainer:
    return LocalTrainer(model, ctx)
