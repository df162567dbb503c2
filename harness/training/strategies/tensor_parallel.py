"""Tensor parallel: every layer is split by width among the ranks.

The knobs add sequence parallelism and loss parallelism.
"""

import contextlib
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from harness.cases import Batching, CaseSpec, Dim
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.parallel import data_parallel, traffic, width
from harness.training.trainer import LocalTrainer, element_bytes, training_bytes

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("tp", "dp", "fsdp"),
    compiles=False, replicas=True, needs=("TENSOR",), precisions=("fp32", "bf16"),
    products=("dp:2,tp:2", "fsdp:2,tp:2", "dp:2,fsdp:2,tp:2"),
)  # fmt: skip
KNOBS = dict(sequence=False, loss=False)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect four all-reduces per layer (Megatron-LM), and data parallel traffic."""
    mesh = batching.mesh
    size = element_bytes(model)
    ranks = mesh.size(Dim.TP)
    sequence = bool(knobs["sequence"])
    loss = bool(knobs["loss"])
    if not case.communicate:
        raise ValueError(
            "tensor_parallel cannot run without communication, because each rank holds only a part"
            " of every layer"
        )
    width.check(model, case, ranks, sequence=sequence, loss=loss)
    blocks = width.blocks(model, ranks)
    along = width.sent(
        model,
        data_parallel.inputs(facts, batching.largest),
        case,
        ranks,
        sequence=sequence,
        loss=loss,
    )
    total = along * batching.accumulate
    total += data_parallel.bytes_by_mesh(case, mesh, blocks, size, 2 * batching.accumulate)
    elements = sum(shape.numel() for shapes in blocks for shape in shapes)
    kept = facts.activation_bytes_per_sample / (ranks if sequence else 1)
    held = (kept + facts.loss_bytes_per_sample) * batching.largest
    return traffic.expected(
        [total] * case.world_size,
        module=data_parallel.module_of(mesh, model),
        placements=width.placed(model, sequence=sequence) if mesh.shards == 1 < ranks else (),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements / mesh.size(Dim.FSDP), size, facts, 0) + int(held),
        formula="4 all-reduces of activations or their gradients per layer",
        global_batch=batching.global_batch,
    )


class TensorTrainer(LocalTrainer):
    """A trainer whose loss can be computed from logits that are split by class among the ranks.

    ``apart`` states whether the logits are split.
    """

    apart = False

    def step(self, batch: Batch) -> Tensor | None:
        """Run one step inside torch's ``loss_parallel`` if the logits are split by class."""
        with loss_parallel() if self.apart else contextlib.nullcontext():
            return super().step(batch)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Split the layers along ``tp``, and replicate or shard the parts along other dimensions."""
    apart = bool(knobs["loss"]) and ctx.mesh.size(Dim.TP) > 1
    if ctx.mesh.size(Dim.TP) > 1:
        width.cut(model, ctx, sequence=bool(knobs["sequence"]), loss=apart)
    if apart:
        plain = ctx.loss
        ctx = replace(ctx, loss=lambda output, targets: data_parallel.whole(plain(output, targets)))
    trainer = data_parallel.by_mesh(model, ctx).trainer(ctx, TensorTrainer)
    assert isinstance(trainer, TensorTrainer)
    trainer.apart = apart
    return trainer
