"""Pipeline: one stage of blocks per rank, fed with micro-batches (GPipe, 1F1B)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from harness.record import Category, Expected, ModelFacts, WhatRan
from harness.spec import Batching, CaseSpec, Precision
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.trainer import element_bytes, observe_dtype

SUPPORTS = dict(
    worlds="any",
    oracle="micro_batched",
    parts="microbatches",
    initial="same_seed",
    whole=True,
    metrics=("efficiency", "efficiency_of_ideal"),
)
KNOBS = dict(schedule="gpipe", microbatches=8)
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def cuts(model: nn.Sequential, stages: int) -> list[list[str]]:
    """Contiguous blocks per stage with the smallest largest stage.

    Weighed by the parameters that are multiplied with: looking up an embedding costs nothing.
    """
    names = [n for n, _ in model.named_children()]
    weights = [
        sum(
            p.numel()
            for layer in block.modules()
            if not isinstance(layer, nn.Embedding)
            for p in layer.parameters(recurse=False)
        )
        or 1
        for block in model.children()
    ]
    if len(names) < stages:
        raise ValueError(f"{len(names)} blocks cannot be cut into {stages} stages")
    best: dict[tuple[int, int], tuple[int, int]] = {(0, 0): (0, 0)}  # (stage, end) -> (cost, start)
    for stage in range(1, stages + 1):
        for end in range(stage, len(names) - (stages - stage) + 1):
            best[stage, end] = min(
                (max(best[stage - 1, start][0], sum(weights[start:end])), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            )
    out, end = [], len(names)
    for stage in range(stages, 0, -1):
        start = best[stage, end][1]
        out.append(names[start:end])
        end = start
    return out[::-1]


def expect(
    case: CaseSpec, model: nn.Sequential, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """One activation forwards and one gradient backwards over each boundary, per micro-batch.

    The bubble leaves M / (M + N - 1) of the ideal (Huang et al., GPipe, 2019), the same for 1F1B.
    """
    n, micro, schedule = case.world_size, int(knobs["microbatches"]), knobs["schedule"]
    if not isinstance(model, nn.Sequential):
        made = type(model).__name__
        raise ValueError(f"a pipeline cuts an nn.Sequential into stages, and build() made a {made}")
    if schedule not in SCHEDULES:
        raise ValueError(f"pipeline.schedule {schedule!r} is not one of {', '.join(SCHEDULES)}")
    if case.precision is Precision.AUTOCAST:
        raise ValueError("a pipeline does not support autocast (unknown dtypes): use bf16")
    if not case.communicate:
        raise ValueError("a pipeline cannot run without communication")
    if case.accumulate != 1:
        raise ValueError("a pipeline accumulates over its micro-batches: use pipeline.microbatches")
    if batching.global_batch % micro:
        raise ValueError(
            f"global batch {batching.global_batch} does not divide into {micro} micro-batches"
        )
    if micro < n:
        raise ValueError(f"{micro} micro-batches cannot fill {n} stages")
    stages = cuts(model, n)
    x = _first_input(model, facts, batching.global_batch // micro)
    boundaries: list[float] = []
    for names in stages:
        for name in names:
            x = model.get_submodule(name)(x)
        boundaries.append(float(x.numel() * x.element_size()))
    sends = [
        micro * ((boundaries[r] if r < n - 1 else 0) + (boundaries[r - 1] if r else 0))
        for r in range(n)
    ]
    return Expected(
        sent_bytes=tuple(sends),
        payload_bytes={"send": tuple(sends)} if n > 1 else {},
        largest_message=max(boundaries[:-1], default=0),
        module="PipelineStage",
        schedule=SCHEDULES[schedule].__name__,
        ideal_efficiency=micro / (micro + n - 1),
        memory_bytes=max(_stage_bytes(model, facts, stages, r, batching, knobs) for r in range(n)),
        formula="M (activation + gradient) per boundary",
        global_batch=batching.global_batch,
        stages=n,
        remedies={"bubble": f"{case.strategy}.microbatches={2 * micro}"},
    )


def _stage_bytes(
    model: nn.Sequential,
    facts: ModelFacts,
    stages: Sequence[Sequence[str]],
    stage: int,
    batching: Batching,
    knobs: Knobs,
) -> int:
    """What one stage holds: its states, and what its blocks keep of the micro-batches in flight.

    GPipe runs all of them forwards before the first goes backwards; 1F1B has as many in flight as
    there are stages from this one on (Narayanan et al., PipeDream-2BW, 2021).
    """
    micro = int(knobs["microbatches"])
    in_flight = micro if knobs["schedule"] == "gpipe" else min(micro, len(stages) - stage)
    samples = batching.global_batch // micro
    owned = stages[stage]
    elements = sum(p.numel() for m in owned for p in model.get_submodule(m).parameters())
    blocks = dict(zip((n for n, _ in model.named_children()), facts.block_bytes, strict=False))
    kept = sum(blocks.get(name, 0) for name in owned) * in_flight + facts.again_bytes
    return int(elements * element_bytes(model) * 4 + kept * samples)


def _first_input(model: nn.Sequential, facts: ModelFacts, samples: int) -> Tensor:
    """A meta tensor shaped like one micro-batch of inputs."""
    return torch.empty(
        (samples, *facts.input_shape), dtype=getattr(torch, facts.input_dtype), device="meta"
    )


def _spanned(part: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """A span around every micro-batch of this stage: 1F1B says nothing of them by itself."""

    def one_chunk(chunk: int, *args: Any, **more: Any) -> Any:
        with span(part, payload=chunk):
            return run(chunk, *args, **more)

    return one_chunk


class PipelineTrainer:
    """One stage of the model on this rank."""

    def __init__(self, model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> None:
        self.ctx = ctx
        names = cuts(model, ctx.world_size)[ctx.rank]
        self.blocks = nn.Sequential(OrderedDict((n, model.get_submodule(n)) for n in names))
        stage = PipelineStage(self.blocks, ctx.rank, ctx.world_size, ctx.device)
        for part in ("forward", "backward"):
            setattr(stage, f"{part}_one_chunk", _spanned(part, getattr(stage, f"{part}_one_chunk")))
        kind = SCHEDULES[knobs["schedule"]]
        self.stage = stage
        self.schedule = kind(
            stage, n_microbatches=knobs["microbatches"], loss_fn=ctx.loss, scale_grads=True
        )
        self.optimizer = ctx.optimizer(self.blocks.parameters())
        self.compute_dtype = observe_dtype(self.blocks)

    def step(self, batch: Batch) -> Tensor | None:
        """All micro-batches through the schedule, then the optimizer; loss on the last rank."""
        self.optimizer.zero_grad(set_to_none=True)
        first, last = self.ctx.rank == 0, self.ctx.rank == self.ctx.world_size - 1
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if first else ()
        with span("schedule"), self.ctx.autocast():
            if last:
                self.schedule.step(*inputs, target=batch.targets, losses=losses)
            else:
                self.schedule.step(*inputs)
        with span("optimizer", Category.OPTIMIZER):
            self.optimizer.step()
        return torch.stack(losses).mean().detach() if last else None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.blocks.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            yield name, parameter.grad.detach()

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.blocks.named_parameters():
            yield name, parameter.detach()

    def ran(self) -> WhatRan:
        """The schedule's class and what this stage holds."""
        return WhatRan(
            module=type(self.stage).__name__,
            placements=(
                f"stage {self.ctx.rank}: {', '.join(n for n, _ in self.blocks.named_children())}",
            ),
            schedule=type(self.schedule).__name__,
            compute_dtype=",".join(sorted(self.compute_dtype)),
        )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> PipelineTrainer:
    """This rank's stage under the case's schedule."""
    return PipelineTrainer(model, ctx, knobs)
