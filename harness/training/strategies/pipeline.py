"""Pipeline: stages of blocks that process micro-batches under any of torch's schedules."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from harness.cases import Batching, CaseSpec, Compiled, Dim
from harness.record import Category, ExecutedModel, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.parallel import data_parallel, depth, groups, traffic, width
from harness.training.parallel.schedule import Schedule
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import element_bytes, observe_dtype

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="micro_batched",
    parts="microbatches",
    initial="same_seed",
    dims=("pp", "dp", "fsdp", "tp"),
    replicas=True,
    precisions=("fp32", "bf16"),  # torch's stages do not support the dtypes of autocast
    products=("pp:2,dp:2", "pp:2,fsdp:2", "pp:2,tp:2", "pp:2,fsdp:2,tp:2", "pp:2,tp:4"),
    metrics=("efficiency", "efficiency_of_ideal"),
)
KNOBS = dict(
    schedule="gpipe", microbatches=8, stages_per_rank=2, split="flops", sequence=False
)  # fmt: skip


def order(knobs: Knobs, ranks: int) -> Sequence[int]:
    """Return the indices of micro-batches in the order in which their gradients are added."""
    return Schedule.of(knobs, ranks).order()


def expect(
    case: CaseSpec, model: nn.Sequential, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect one activation and one gradient per micro-batch across each stage boundary.

    The ideal efficiency comes from a simulation of the schedule with the FLOPs of its stages. For M
    micro-batches and N equal stages, GPipe and 1F1B reach M / (M + N - 1) (Huang et al., GPipe,
    2019). ``balance`` is the ratio of the ideal efficiency to the efficiency with equal stages.
    """
    mesh = batching.mesh
    sequence = bool(knobs["sequence"])
    n, cut = mesh.size(Dim.PP), mesh.size(Dim.TP)
    _check(case, model, batching, knobs)
    if cut > 1:
        width.check(model, case, cut, sequence=sequence, loss=False)
    elif sequence:
        raise ValueError(
            "pipeline.sequence=True splits the sequence along tp, but the mesh has no tp dimension"
        )
    schedule = Schedule.of(knobs, n, len(model))
    if schedule.splits and case.compiled is not Compiled.NO:
        raise ValueError(
            f"schedule {schedule.name} splits backward passes, which compiled blocks do not support"
        )
    x = data_parallel.inputs(facts, batching.largest // schedule.micro)
    blocks = depth.blocks_of(model, x)
    flops = {name: block.flops for name, block in blocks.items()}
    stages = depth.cuts(flops, schedule.stages, knobs["split"])
    weights = [sum(flops[name] for name in names) for names in stages]
    ideal = schedule.efficiency(weights)
    per_stage: list[Traffic] = []
    for i, names in enumerate(stages):
        part = depth.stage(model, names)
        sent = Traffic()
        if cut > 1:
            sent += width.sent(part, x, case, cut, sequence=sequence, loss=False)
        before = x
        x = blocks[names[-1]].output
        for side, inside in ((before, i > 0), (x, i < schedule.stages - 1)):
            other = i - 1 if side is before else i + 1
            # No gradient flows back into stages whose parameters are all frozen.
            earlier = [model.get_submodule(name) for stage in stages[:i] for name in stage]
            trains = side is x or any(map(_trains, earlier))
            if inside and trains and schedule.holder(other) != schedule.holder(i):
                sent += traffic.sent(side.nbytes / (cut if sequence else 1))
        per_stage.append(sent * schedule.micro + _of_samples(part, case, batching))
    rank_of = [mesh.place(rank, Dim.PP) for rank in range(case.world_size)]
    sends = [sum((per_stage[s] for s in schedule.held(place)), Traffic()) for place in rank_of]
    return traffic.expected(
        sends,
        largest=max(of_stage.largest for of_stage in per_stage),
        module="PipelineStage",
        schedule=schedule.made.__name__,
        ideal_efficiency=ideal,
        balance=ideal / schedule.efficiency(),
        memory_bytes=max(_held(model, facts, stages, schedule, r, batching) for r in range(n)),
        formula="M (activation + gradient) per boundary",
        global_batch=batching.global_batch,
        stages=n,
        blocks=tuple(map(len, stages)) if len(stages) == case.world_size else (),
        remedies={"bubble": f"{case.strategy}.microbatches={2 * schedule.micro}"},
    )


def _check(case: CaseSpec, model: nn.Module, batching: Batching, knobs: Knobs) -> None:
    """Raise ValueError for a model or a case that no schedule supports."""
    micro = int(knobs["microbatches"])
    if not isinstance(model, nn.Sequential):
        made = type(model).__name__
        raise ValueError(
            f"build() of the model returned a {made}; a pipeline expects an nn.Sequential of blocks"
        )
    if not case.communicate:
        raise ValueError("a pipeline cannot run without communication")
    if case.accumulate != 1:
        raise ValueError(
            f"a pipeline does not support accumulate={case.accumulate}, because it accumulates over"
            " its micro-batches; use pipeline.microbatches"
        )
    if micro and batching.largest % micro:
        raise ValueError(
            f"a batch of {batching.largest} samples does not divide into {micro} micro-batches"
        )


def _trains(module: nn.Module) -> bool:
    """Return whether a module has a parameter that is not frozen."""
    return any(parameter.requires_grad for parameter in module.parameters())


def _of_samples(part: nn.Module, case: CaseSpec, batching: Batching) -> Traffic:
    """Return the data parallel traffic of one stage, among its replicas or shards.

    Sharded parameters are gathered once for all micro-batches, and kept until the last backward
    pass.
    """
    mesh = batching.mesh
    blocks = width.blocks(part, mesh.size(Dim.TP))
    return data_parallel.bytes_by_mesh(case, mesh, blocks, element_bytes(part), gathers=1)


def _held(
    model: nn.Sequential,
    facts: ModelFacts,
    stages: Sequence[Sequence[str]],
    schedule: Schedule,
    rank: int,
    batching: Batching,
) -> int:
    """Return the memory of one rank in bytes.

    It is the sum of weights, gradients, moments, and the activations of the micro-batches whose
    backward pass has not yet run.
    """
    mesh = batching.mesh
    kept = dict(zip((name for name, _ in model.named_children()), facts.block_bytes, strict=False))
    owned = [m for s in schedule.held(rank) for m in stages[s]]
    elements = sum(
        parameter.numel() for m in owned for parameter in model.get_submodule(m).parameters()
    )
    flying = schedule.most_in_flight(rank, lambda s: sum(kept.get(m, 0) for m in stages[s]))
    states = elements * element_bytes(model) * 4 / mesh.size(Dim.TP, Dim.FSDP)
    last = schedule.stages - 1 in schedule.held(rank)
    besides = max(facts.again_bytes, facts.loss_bytes_per_sample * last)
    return int(states + (flying + besides) * (batching.largest // schedule.micro))


def _spanned(part: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``run`` in a span per micro-batch, because torch's 1F1B schedule records no spans."""

    def one_chunk(chunk: int, *args: Any, **more: Any) -> Any:
        with span(part, payload=chunk):
            return run(chunk, *args, **more)

    return one_chunk


def _restored(part: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    """Restore the buffers and frozen parameters of a stage before its first call of ``run``.

    Torch passes made-up inputs through a stage to infer the shapes of its outputs, which changes
    the statistics of batch norm, for example.
    """
    frozen = [parameter for parameter in part.parameters() if not parameter.requires_grad]
    kept = [(tensor, tensor.detach().clone()) for tensor in (*part.buffers(), *frozen)]

    def from_start(*args: Any, **more: Any) -> Any:
        for tensor, value in kept:
            tensor.detach().copy_(value)
        kept.clear()
        return run(*args, **more)

    return from_start


class PipelineTrainer:
    """The trainer of this rank's pipeline stages."""

    def __init__(self, model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> None:
        self.ctx = ctx
        ranks = ctx.mesh.size(Dim.PP)
        place = ctx.mesh.place(ctx.rank, Dim.PP)
        plan = Schedule.of(knobs, ranks)
        flops = depth.flops_of(model, ctx.sample(ctx.batching.largest // plan.micro))
        names = depth.cuts(flops, plan.stages, knobs["split"])
        held = plan.held(place)
        self.first = 0 in held
        self.last = plan.stages - 1 in held
        self.blocks = [depth.stage(model, names[stage]) for stage in held]
        group = groups.group(ctx, Dim.PP)
        self.stages = []
        for index, part in zip(held, self.blocks, strict=True):
            if ctx.mesh.size(Dim.TP) > 1:
                width.cut(part, ctx, sequence=knobs["sequence"], loss=False)
            data_parallel.by_mesh(part, ctx, reshard=False)
            stage = PipelineStage(part, index, plan.stages, ctx.device, group=group)
            for what in ("forward", "backward", "backward_weight"):
                name = f"{what}_one_chunk"
                run = getattr(stage, name)
                run = _restored(part, run) if what == "forward" else run
                setattr(stage, name, _spanned(what.split("_")[0], run))
            self.stages.append(stage)
        several = issubclass(plan.made, PipelineScheduleMulti)
        self.schedule = plan.made(
            self.stages if several else self.stages[0],
            n_microbatches=plan.micro,
            loss_fn=ctx.loss,
            scale_grads=True,
        )
        self.optimizer = ctx.optimizer((parameter for _, parameter in self.named()), stages=group)
        self.compute_dtype = set[str]().union(*(observe_dtype(part) for part in self.blocks))

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this rank's stages with their names."""
        for part in self.blocks:
            yield from part.named_parameters()

    def step(self, batch: Batch) -> Tensor | None:
        """Run all micro-batches through the schedule and step the optimizer.

        Return the loss on the rank with the last stage, and None on all others.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        inputs = (batch.inputs,) if self.first else ()
        wanted: dict[str, Any] = dict(target=batch.targets, losses=losses) if self.last else {}
        with span("schedule"), self.ctx.forward():
            # return_outputs=True would keep and concatenate the logits of all micro-batches.
            self.schedule.step(*inputs, **wanted, return_outputs=False)
        with span("optimizer", Category.OPTIMIZER):
            self.optimizer.step()
        return torch.stack(losses).mean().detach() if self.last else None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.named():
            if parameter.grad is not None:
                yield name, data_parallel.whole(parameter.grad.detach())

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.named():
            yield name, data_parallel.whole(parameter.detach())

    def ran(self) -> ExecutedModel:
        """Return the classes of stage and schedule, and the blocks of this rank's stages."""
        return ExecutedModel(
            module=type(self.stages[0]).__name__,
            placements=tuple(
                f"stage {stage.stage_index}: {', '.join(name for name, _ in part.named_children())}"
                for stage, part in zip(self.stages, self.blocks, strict=True)
            ),
            schedule=type(self.schedule).__name__,
            compute_dtype=",".join(sorted(self.compute_dtype)),
        )


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> PipelineTrainer:
    """Build the trainer that runs this rank's stages under the case's schedule."""
    return PipelineTrainer(model, ctx, knobs)
