"""DDP whose gradients go through a compressor's communication hook."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.base.errors import NotComparableError
from harness.cases import Batching, CaseSpec
from harness.record import ExecutedModel, Expected, ModelFacts
from harness.training.context import Compressor, Knobs, RankContext
from harness.training.data import Batch
from harness.training.observe import laps
from harness.training.observe.spans import span
from harness.training.parallel import traffic
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer
from harness.training.transports import Late, restore, state_of

SUPPORTS = dict(
    worlds="any",
    oracle="compressed",
    initial="broadcast",
    replicas=True,
    buffers="broadcast",
    compressor=True,
)
#: ``unused=True`` keeps the order of the parameters in a bucket. With ``unused=False`` DDP reverses
#: their order after the first step. If the compressor depends on the order, a resumed run then
#: differs from an uninterrupted one.
KNOBS = dict(bucket_cap_mb=1024.0, start=0, unused=False)
TWIN = dict(start=1)


def expect(
    case: CaseSpec,
    model: nn.Module,
    batching: Batching,
    facts: ModelFacts,
    knobs: Knobs,
    compressor: Compressor,
) -> Expected:
    """Expect the bytes that the compressor promises, after ``start`` steps without compression."""
    if any(weights.is_complex() for weights in model.parameters()):
        raise NotComparableError(
            "the model has complex parameters, but compressors are defined for real gradients:"
            " choose ddp, or use torch.view_as_complex on real parameters"
        )
    shapes = [weights.shape for weights in model.parameters() if weights.requires_grad]
    promise = compressor.promise(shapes, case.world_size)
    n = case.world_size
    largest = max(promise.payload_bytes.values())
    sent = traffic.Traffic(promise.sent_bytes, promise.payload_bytes, largest)
    if knobs["unused"]:
        sent += ddp.flags(len(shapes), n)
    plain = ddp.expect(case, model, batching, facts, knobs)
    start = int(knobs["start"])
    return replace(
        plain,
        whole_steps=((0, start, 1),) if start and n > 1 else (),
        whole_bytes=plain.sent_bytes[0] if start else 0.0,
        sent_bytes=(sent.sent,) * n,
        payload_bytes={key: (value,) * n for key, value in sent.issued.items()},
        largest_message=sent.largest,
        formula=promise.formula,
    )


class CompressedTrainer(LocalTrainer):
    """A DDP trainer that also reports the compressor and the time that compression took."""

    compressor = ""

    hook: Any = None

    def own_state(self) -> Mapping[str, Any]:
        """Return the state of the hook: error feedback and random generators."""
        return state_of(self.hook, {parameter: name for name, parameter in self.named()})

    def remember(self, state: Mapping[str, Any]) -> None:
        restore(self.hook, state, dict(self.named()))

    def step(self, batch: Batch) -> Tensor | None:
        laps.begin(self.ctx.device)
        return super().step(batch)

    def ran(self) -> ExecutedModel:
        """Return what DDP executed, with the compressor's name and its median times."""
        return replace(super().ran(), compressor=self.compressor, codec_s=laps.medians())


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Build DDP with the compressor's hook.

    By default there is a single bucket. The closed form assumes a single bucket, and the order of
    collectives is then fixed.
    """
    assert ctx.compressor is not None
    plain = ddp.build(model, ctx, knobs)
    hook = ctx.compressor.build(ctx)
    if ctx.compressor.start:
        hook = Late(hook, ctx.compressor.start, ctx.world_size)

    def comm_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        with span("bucket", payload=bucket.index()):
            return hook(bucket)  # type: ignore[no-any-return]

    # DDP checks the hook's annotations by identity, so they must be objects and not strings.
    future = torch.futures.Future[torch.Tensor]
    comm_hook.__annotations__ = {"bucket": dist.GradBucket, "return": future}
    assert isinstance(plain.module, DistributedDataParallel)
    plain.module.register_comm_hook(None, comm_hook)
    trainer = CompressedTrainer(
        plain.module,
        ctx,
        named=plain.named,
        synchronise=plain.synchronise,
        placements=plain.placements,
    )
    trainer.compressor = str(ctx.case.compressor)
    trainer.hook = hook
    return trainer
