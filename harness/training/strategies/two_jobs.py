"""Two jobs on one fabric: DDP of every other rank, so that both jobs are on all nodes."""

from collections.abc import Sequence
from typing import TypeAlias

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes

#: Of one rank, in the order of its parameters.
Gradients: TypeAlias = Sequence[Tensor]

SUPPORTS = dict(
    recovers=False, worlds="any", oracle="simulated", beside="two_jobs", initial="broadcast", jobs=2
)
#: ``talking``: jobs that exchange their gradients. With 1 the other one computes and is silent, so
#: that what the first one loses beside a second one that talks is lost on the fabric alone.
KNOBS = dict(talking=2)
RANGES = dict(talking=(1, 2))
JOBS = 2  # as SUPPORTS says


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """An all-reduce of every gradient among the ranks of a job that talks."""
    n = case.world_size
    if n % JOBS and n > 1:
        raise ValueError(f"{n} ranks are not two jobs of equally many: an even number")
    elements = num_elements(model)
    size = element_bytes(model)
    sent = traffic.all_reduce(float(elements * size), max(1, n // JOBS))
    of_ranks = [sent if _talks(rank, knobs) else traffic.Traffic() for rank in range(n)]
    return traffic.expected(
        of_ranks,
        largest=sent.largest,
        module="DistributedDataParallel",
        placements=("Replicate",),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements, size, facts, batching.largest, gradients=True),
        formula="2 (J-1)/J bytes(P) in a job of J = N/2 that talks",
        global_batch=batching.global_batch,
    )


def _talks(rank: int, knobs: Knobs) -> bool:
    return rank % JOBS < int(knobs["talking"])


class Nothing:
    """Ranks do nothing behind a step: DDP has exchanged all of it."""

    def after(self, step: int) -> None:
        """Nothing is agreed on."""


class Simulation:
    """All ranks' models in one process."""

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
        """Nothing is agreed on."""


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Both jobs start from the same weights; each has a group of its own."""
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
