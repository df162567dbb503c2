"""DDP: replicated model, with a bucketed all-reduce of gradients that overlaps with backward."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from harness.base.errors import NotComparableError
from harness.cases import Batching, CaseSpec, Passes
from harness.record import Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.trainer import (
    LocalTrainer,
    parameter_bytes,
    trained_bytes,
    training_bytes,
)

SUPPORTS = dict(
    worlds="any",
    oracle="shard_ordered",
    initial="broadcast",
    replicas=True,
    buffers="broadcast",
    uneven=True,
    forward=True,
    precisions=("fp32", "bf16", "autocast", "fp16", "fp8"),
)
KNOBS = dict(
    bucket_cap_mb=25.0, first_bucket_mb=0.0, static_graph=False, bucket_view=True, unused=False,
    overlap_optimizer=False,
)  # fmt: skip
#: The name by which a case selects this strategy: ``ddp``.
NAME = __name__.rpartition(".")[2]
HOOKED = True  # compressors can register a communication hook


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect a ring all-reduce of every gradient: each rank sends 2 (N-1)/N bytes(P).

    P stands for the parameters that are not frozen. If DDP searches for ``unused`` parameters, it
    also all-reduces one flag per parameter.
    """
    n = case.world_size
    knobs = {**KNOBS, **knobs}  # other strategies call this with fewer knobs
    if knobs["overlap_optimizer"] and (case.accumulate > 1 or not knobs["bucket_view"]):
        raise ValueError("overlap_optimizer=True needs bucket_view=True and accumulate=1")
    if knobs["overlap_optimizer"]:
        optimizers.refuse(case, "an optimizer that steps during backward", warm_up=True)
    payload = float(trained_bytes(model))
    if case.phase is Passes.FORWARD:
        n = 1  # a forward pass alone exchanges nothing
    sent = traffic.all_reduce(payload, n)
    if knobs["unused"]:
        sent += flags(len(list(model.parameters())), n)
    return traffic.expected(
        [sent] * case.world_size,
        largest=min(payload, knobs["bucket_cap_mb"] * 2**20),
        module="DistributedDataParallel",
        placements=("Replicate",),
        dense_bytes=traffic.all_reduce(payload, n).sent,
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(
            parameter_bytes(model),
            1,
            facts,
            batching.largest,
            gradients=case.phase is Passes.TRAIN,
        ),
        formula="2 (N-1)/N bytes(P)" if case.phase is Passes.TRAIN else "0",
        global_batch=batching.global_batch,
    )


def flags(num_parameters: int, ranks: int) -> traffic.Traffic:
    """Return the traffic of the search for unused parameters, a flag of 4 bytes per parameter."""
    return traffic.all_reduce(4.0 * num_parameters, ranks)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Wrap the model in DistributedDataParallel; only the last micro-batch all-reduces.

    The knob ``first_bucket_mb`` is the size of the bucket that is ready first. If it is 0, this
    bucket has the size of the other buckets.
    """
    knobs = {**KNOBS, **knobs}
    more: dict[str, Any] = dict(bucket_cap_mb=knobs["bucket_cap_mb"])
    if knobs["first_bucket_mb"]:
        more = dict(bucket_cap_mb_list=[knobs["first_bucket_mb"], knobs["bucket_cap_mb"]])
    ddp = DistributedDataParallel(
        model,
        device_ids=None if ctx.device.index is None else [ctx.device],
        gradient_as_bucket_view=knobs["bucket_view"],
        static_graph=knobs["static_graph"],
        find_unused_parameters=knobs["unused"],
        **more,
    )

    def synchronise(last: bool) -> None:
        ddp.require_backward_grad_sync = last and ctx.case.communicate  # as ``no_sync`` does

    trainer = (InBackward if knobs["overlap_optimizer"] else Replicated)(
        ddp,
        ctx,
        named=lambda: iter(
            (name.removeprefix("module."), parameter) for name, parameter in ddp.named_parameters()
        ),
        synchronise=synchronise,
        placements=("Replicate",),
    )
    if isinstance(trainer, InBackward):
        ddp.register_comm_hook(None, _hook(trainer.update_only))
    return trainer


class Replicated(LocalTrainer):
    """A trainer of a DistributedDataParallel that detects unused parameters."""

    _looked = False

    def update(self) -> None:
        """Step the optimizer.

        Raise NotComparableError if a parameter has no gradient after the first backward pass,
        although DDP waits for it. The error names the knob that makes DDP search for unused
        parameters.
        """
        assert isinstance(self.module, DistributedDataParallel)
        finds = self.module.find_unused_parameters or self.module.static_graph
        unused = [
            name for name, weights in self.named() if weights.requires_grad and weights.grad is None
        ]
        if not (self._looked or finds) and unused:
            listed = ", ".join(unused[:3])
            searches = self.ctx.compressor is not None or self.ctx.case.strategy == NAME
            strategy = self.ctx.case.strategy if searches else NAME
            instead = "" if searches else f"choose {NAME} with "
            knob = f"{strategy}.unused=true"
            raise NotComparableError(
                f"the loss does not depend on {listed}{', ...' if unused[3:] else ''}, but"
                " DistributedDataParallel waits for the gradients of all parameters unless it"
                f" searches for unused ones: {instead}--set {knob}",
                expected="a gradient of every parameter that is not frozen",
                fix=f"the same command with --set {knob}",
            )
        self._looked = True
        super().update()


class InBackward(LocalTrainer):
    """A trainer that updates parameters during backward, as soon as their bucket is reduced."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._turn = threading.Lock()  # several threads reduce buckets

    def update(self) -> None:
        """Do nothing, because all parameters were updated during backward."""

    def update_only(self, parameters: Sequence[Tensor]) -> None:
        """Update these parameters only.

        Because of ``gradient_as_bucket_view``, their gradients are views of the reduced bucket.
        """
        with self._turn:
            groups = self.optimizer.param_groups
            self.optimizer.param_groups = [{**groups[0], "params": parameters}]
            self.optimizer.step()
            self.optimizer.param_groups = groups


def _hook(update: Callable[[Sequence[Tensor]], None]) -> Callable[..., Any]:
    """Return a hook that runs DDP's default all-reduce and then ``update``."""

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        parameters = bucket.parameters()

        def step(reduced: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            update(parameters)
            return reduced.value()

        return allreduce_hook(None, bucket).then(step)  # type: ignore[arg-type]

    return hook
