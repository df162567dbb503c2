"""DeepSpeed's ZeRO 1, 2 and 3: optimizer states, gradients and parameters shared out by it."""

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
#: The class of its optimizer, by stage.
OPTIMIZERS = ("", *("DeepSpeedZeroOptimizer",) * 2, "DeepSpeedZeroOptimizer_Stage3")


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Gradients all-reduced (1: once, 2: each micro-batch) and stepped weights gathered; of stage 3
    weights gathered forwards and backwards, and gradients scattered. And a norm of all gradients.
    """
    stage = int(knobs["stage"])
    n = case.world_size
    size = element_bytes(model)
    if not case.communicate:
        raise ValueError("each rank steps a part: without communication the rest stays as it was")
    optimizers.refuse(case, "DeepSpeed, whose partitions are flat,", warm_up=True)
    times = batching.accumulate
    elements = num_elements(model)
    payload = float(elements * size)
    parts = size * sum(math.ceil(parameter.numel() / n) for parameter in model.parameters())
    if stage == 3:
        sent = traffic.all_gather(parts, n) * (2 * times)
        sent += traffic.reduce_scatter(case.backend)(float(parts * n), n) * times
        sent += traffic.all_reduce(8.0, n)
        formula = "2 (N-1)/N bytes(P) gathered, bytes(P) scattered, a micro-batch"
    else:
        shard = float(size * math.ceil(elements / (2 * n)) * 2)
        sent = traffic.all_reduce(payload, n) * (times if stage == 2 else 1)
        sent += traffic.all_gather(shard, n) + traffic.all_reduce(4.0, n)
        formula = f"2 (N-1)/N bytes(P){' a micro-batch' * (stage == 2)} + (N-1)/N bytes(P)"
    if case.precision is Precision.BF16 and stage < 3:
        sent += traffic.all_reduce(1.0, n)  # whether anything overflew
    shared = 4 if stage == 3 else 2 + (stage == 2)  # of weights, gradients and two moments
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
    """The engine's backward and step; what it shares out is gathered to be compared."""

    engine: Any
    stage: int
    shards: list[list[Tensor]]

    def clear(self) -> None:
        self.shards.clear()  # the engine has forgotten them itself

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)  # else it divides once more
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()

    def update(self) -> None:
        self.engine.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """From the flat parts that were stepped, in the engine's order."""
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
        """The stage that the engine says it runs, and the class that does it."""
        stage = self.engine.zero_optimization_stage()
        optimizer = self.engine.optimizer
        placed = f"stage {stage} {type(optimizer).__name__}"
        return replace(super().ran(), placements=(placed,))


def _gathered(part: Tensor, world: int) -> Tensor:
    """All ranks' parts of a flat tensor."""
    if world == 1:
        return part
    whole = part.new_empty(world * part.numel())
    dist.all_gather_into_tensor(whole, part.contiguous())
    return whole


def config(case: CaseSpec, batching: Batching, knobs: Knobs) -> dict[str, Any]:
    """DeepSpeed's own configuration; what it would do unasked (clip, build operators) is off."""
    zero: dict[str, Any] = dict(stage=int(knobs["stage"]))
    if zero["stage"] == 3:
        zero |= dict(
            stage3_param_persistence_threshold=0,  # else small models train as by stage 2
            stage3_max_live_parameters=0,  # what is gathered is let go after each module
            stage3_max_reuse_distance=0,
            stage3_module_granularity_threshold=10**9,  # blocks are gathered whole
            memory_efficient_linear=False,  # it replaces torch's for all models of the process
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
    if case.precision is Precision.BF16:  # as ours: no copies of weights in fp32
        asked[str(case.precision)] = dict(
            enabled=True, bf16_master_weights_and_grads=True, bf16_optimizer_states=True
        )
    return asked


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """``deepspeed.initialize`` around the case's own optimizer."""
    as_torchrun_does(ctx)
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)  # it writes to stdout
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # 45 s to build, for one host
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
    trainer.resumable = False  # its states are in parts of its own
    return trainer
