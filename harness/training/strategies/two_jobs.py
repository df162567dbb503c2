"""Two jobs on one fabric: each job is a DDP of every second rank, so both jobs use all nodes."""

from collections.abc import Sequence
from typing import TypeAlias

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.trainer import (
    LocalTrainer,
    element_bytes,
    num_elements,
    trained_bytes,
    training_bytes,
)

#: The gradients of one rank, in the order of its parameters.
Gradients: TypeAlias = Sequence[Tensor]

SUPPORTS = dict(
    recovers=False, worlds="any", oracle="simulated", beside="two_jobs", initial="broadcast", jobs=2
)
#: ``talking`` is the number of jobs that exchange gradients. With ``talking=1`` the second job only
#: computes. If the first job is slower with ``talking=2``, only the shared fabric can be the cause.
KNOBS = dict(talking=2)
RANGES = dict(talking=(1, 2))
JOBS = 2  # must equal ``jobs`` in SUPPORTS


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect an all-reduce of every gradient among the ranks of each job that communicates."""
    n = case.world_size
    if n % JOBS and n > 1:
        raise ValueError(
            f"two_jobs cannot divide {n} ranks into two equal jobs; use an even number"
        )
    elements = num_elements(model)
    size = element_bytes(model)
    sent = traffic.all_reduce(float(trained_bytes(model)), max(1, n // JOBS))
    of_ranks = [sent if _talks(rank, knobs) else traffic.Traffic() for rank in range(n)]
    return traffic.expected(
        of_ranks,
        largest=sent.largest,
        module="DistributedDataParallel",
        placements=("Replicate",),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements, size, facts, batching.largest, gradients=True),
        formula="2 (J-1)/J bytes(P), J = N/2, in a job that communicates",
        global_batch=batching.global_batch,
    )


def _talks(rank: int, knobs: Knobs) -> bool:
    """Return whether the job of this rank exchanges gradients."""
    return rank % JOBS < int(knobs["talking"])


class Nothing:
    """A rule that does nothing after a step, because DDP has exchanged the gradients."""

    def after(self, step: int) -> None:
        """Do nothing."""


class Simulation:
    """The reference run with the models of all ranks; gradients are averaged within each job."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.jobs = JOBS if len(models) > 1 else 1
        self.knobs = knobs

    def before(self, step: int, gradients: Sequence[Gradients]) -> Sequence[Gradients]:
        made = list(gradients)
        for job in range(self.jobs):
            if not _talks(job, self.knobs):
                continue
            mean = [outer.mean_of(same) for same in zip(*gradients[job :: self.jobs], strict=True)]
            for rank in range(job, len(made), self.jobs):
                made[rank] = [part.clone() for part in mean]
        return made

    def after(self, step: int) -> None:
        """Do nothing."""


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Build DDP in the process group of this rank's job; both jobs start from the same weights."""
    if ctx.world_size > 1:
        flat = outer.vector(model)
        dist.broadcast(flat, src=0)
        outer.fill(model, flat)
    jobs = JOBS if ctx.world_size > 1 else 1
    groups = [dist.new_group(list(range(job, ctx.world_size, jobs))) for job in range(jobs)]
    wrapped = DistributedDataParallel(
        model,
        device_ids=None if ctx.device.index is None else [ctx.device],
        process_group=groups[ctx.rank % jobs],
        gradient_as_bucket_view=True,
    )

    def synchronise(last: bool) -> None:
        several = ctx.world_size > jobs
        exchanges = last and several and ctx.case.communicate and _talks(ctx.rank, knobs)
        wrapped.require_backward_grad_sync = exchanges

    trainer = outer.OuterTrainer(
        wrapped,
        ctx,
        named=lambda: (
            (name.removeprefix("module."), parameter)
            for name, parameter in wrapped.named_parameters()
        ),
        synchronise=synchronise,
        placements=("Replicate",),
    )
    trainer.rule = Nothing()
    return trainer
