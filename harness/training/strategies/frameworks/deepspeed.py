"""DeepSpeed's ZeRO 1, 2 and 3: it divides optimizer states, gradients and parameters."""

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec, Precision
from harness.record import ExecutedModel, Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.strategies.frameworks import as_torchrun_does
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes

SUPPORTS = dict(
    recovers=False,
    worlds="any", oracle="shard_ordered", initial="same_seed", replicas=True,
    packages=("deepspeed",), precisions=("fp32", "bf16", "autocast"), compiles=False,
)  # fmt: skip
KNOBS = dict(stage=1)
RANGES = dict(stage=(1, 3))
#: The class of DeepSpeed's optimizer, by stage.
OPTIMIZERS = ("", *("DeepSpeedZeroOptimizer",) * 2, "DeepSpeedZeroOptimizer_Stage3")


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of a ZeRO stage, and an all-reduce of the norm of all gradients.

    Stage 1 all-reduces gradients once per step, and stage 2 after each micro-batch. Both gather the
    updated weights. Stage 3 gathers weights in forward and in backward, and reduce-scatters
    gradients.
    """
    stage = int(knobs["stage"])
    n = case.world_size
    size = element_bytes(model)
    if not case.communicate:
        raise ValueError(
            "DeepSpeed cannot run without communication, because each rank steps only a part of the"
            " parameters"
        )
    optimizers.refuse(case, "DeepSpeed's flat partitions", warm_up=True)
    times = batching.accumulate
    elements = num_elements(model)
    payload = float(elements * size)
    parts = size * sum(math.ceil(parameter.numel() / n) for parameter in model.parameters())
    if stage == 3:
        sent = traffic.all_gather(parts, n) * (2 * times)
        sent += traffic.reduce_scatter(case.backend)(float(parts * n), n) * times
        sent += traffic.all_reduce(8.0, n)
        formula = "2 (N-1)/N bytes(P) gathered, bytes(P) scattered, per micro-batch"
    else:
        shard = float(size * math.ceil(elements / (2 * n)) * 2)
        sent = traffic.all_reduce(payload, n) * (times if stage == 2 else 1)
        sent += traffic.all_gather(shard, n) + traffic.all_reduce(4.0, n)
        formula = f"2 (N-1)/N bytes(P){' per micro-batch' * (stage == 2)} + (N-1)/N bytes(P)"
    if case.precision is Precision.BF16 and stage < 3:
        sent += traffic.all_reduce(1.0, n)  # the flag that signals an overflow
    # ``shared`` counts how many of the four (weights, gradients, two moments) the ranks divide.
    shared = 4 if stage == 3 else 2 + (stage == 2)
    held = elements * (4 - shared) + elements * shared / n
    return traffic.expected(
        [sent] * n,
        largest=min(payload, 5e8 * size),
        module="DeepSpeedEngine",
        placements=(f"stage {stage} {OPTIMIZERS[stage]}",),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(held / facts.copies, size, facts, batching.largest)
        + int(payload),
        formula=formula,
        global_batch=batching.global_batch,
        reorders=stage == 3 or (stage == 2 and times > 1),
    )


class EngineTrainer(LocalTrainer):
    """A trainer that calls the engine's backward and step.

    It gathers the parts of gradients and parameters for the correctness check. ``shards`` holds
    this rank's flat gradients of the last step.
    """

    engine: Any
    stage: int
    shards: list[list[Tensor]]

    def clear(self) -> None:
        self.shards.clear()  # the engine drops its gradients itself

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)  # the loss is already scaled
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()

    def update(self) -> None:
        self.engine.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield gradients by name, gathered from the ranks' flat parts in the engine's order."""
        zero, world = self.engine.optimizer, self.ctx.world_size
        names = {id(p): name for name, p in self.engine.module.named_parameters()}
        if self.stage < 3:
            for part, group in zip(self.shards[-1], zero.round_robin_bit16_groups, strict=True):
                flat = _gathered(part, world)
                offset = 0
                for parameter in group:
                    whole = flat[offset : offset + parameter.numel()]
                    yield names[id(parameter)], whole.view(parameter.shape)
                    offset += parameter.numel()
            return
        for parts, group in zip(self.shards, zero.fp16_groups, strict=True):
            [part], offset = parts, 0
            for parameter in group:
                piece = part[offset : offset + parameter.ds_tensor.ds_numel]
                flat = _gathered(piece, world)[: parameter.ds_numel]
                yield names[id(parameter)], flat.view(parameter.ds_shape)
                offset += parameter.ds_tensor.ds_numel

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        import deepspeed

        for name, parameter in self.engine.module.named_parameters():
            gathered = contextlib.nullcontext()
            if self.stage == 3:
                gathered = deepspeed.zero.GatheredParameters([parameter])
            with gathered:
                yield name, parameter.detach().clone()

    def ran(self) -> ExecutedModel:
        """Return the stage that the engine reports, and the class of its optimizer."""
        stage = self.engine.zero_optimization_stage()
        optimizer = self.engine.optimizer
        placed = f"stage {stage} {type(optimizer).__name__}"
        return replace(super().ran(), placements=(placed,))


def _gathered(part: Tensor, world: int) -> Tensor:
    """Gather the parts of a flat tensor from all ranks."""
    if world == 1:
        return part
    whole = part.new_empty(world * part.numel())
    dist.all_gather_into_tensor(whole, part.contiguous())
    return whole


def config(case: CaseSpec, batching: Batching, knobs: Knobs) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    Gradients are clipped only if the case clips, and DeepSpeed's CPU optimizer is not forced.
    """
    zero: dict[str, Any] = dict(stage=int(knobs["stage"]))
    if zero["stage"] == 3:
        zero |= dict(
            stage3_param_persistence_threshold=0,  # shard small parameters, too
            stage3_max_live_parameters=0,  # release gathered parameters after each module
            stage3_max_reuse_distance=0,
            stage3_module_granularity_threshold=10**9,  # gather each block as a whole
            memory_efficient_linear=False,  # True would replace nn.Linear in the whole process
        )
    asked = dict(
        train_micro_batch_size_per_gpu=batching.largest,
        gradient_accumulation_steps=1,
        gradient_clipping=case.clip,
        steps_per_print=10**9,
        zero_allow_untested_optimizer=True,
        zero_force_ds_cpu_optimizer=False,
        zero_optimization=zero,
    )
    if case.precision is Precision.BF16:  # no fp32 copies of weights, like other strategies
        asked[str(case.precision)] = dict(
            enabled=True, bf16_master_weights_and_grads=True, bf16_optimizer_states=True
        )
    return asked


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Wrap the model and the case's optimizer with ``deepspeed.initialize``."""
    as_torchrun_does(ctx)
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)  # the logger writes to stdout
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes 45 s
    kind, settings = ctx.update
    optimizer = kind(model.parameters(), **settings)
    shards: list[list[Tensor]] = []

    def stepped(_: torch.optim.Optimizer, *__: object) -> None:
        shards.append(
            [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        )

    optimizer.register_step_pre_hook(stepped)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        dist_init_required=False,
        config=config(ctx.case, ctx.batching, knobs),
    )
    trainer = EngineTrainer(
        engine,
        ctx,
        named=model.named_parameters,
        optimizer=optimizer,
        synchronise=engine.set_gradient_accumulation_boundary,
    )
    trainer.engine = engine
    trainer.stage = int(knobs["stage"])
    trainer.shards = shards
    trainer.resumable = False  # the ranks hold partial states in DeepSpeed's format
    return trainer
