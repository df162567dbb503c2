"""Two roles, as in reinforcement learning: actors generate samples and learners train on them."""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec, Dim
from harness.record import Category, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.parallel import data_parallel, groups, outer, traffic
from harness.training.trainer import LocalTrainer, trained_bytes, training_bytes

SUPPORTS = dict(
    recovers=False,
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("role", "dp"),
    usual="role:2,dp:2", replicas=True,
)  # fmt: skip
#: ``passes`` is the number of forward passes that an actor runs per batch, one per generated token.
KNOBS = dict(passes=1)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the traffic of a step between the L learners and their actors.

    Each actor sends samples to its learner, the learners all-reduce their gradients, and each
    learner sends its weights to its actor.
    """
    mesh = batching.mesh
    payload = outer.payload(model)
    if case.world_size > 1 and mesh.size(Dim.ROLE) != 2:
        raise ValueError(
            f"{case.world_size} ranks with role:{mesh.size(Dim.ROLE)} are not pairs of an actor and"
            " a learner; expected an even number of ranks and role:2"
        )
    if not case.communicate:
        raise ValueError(
            "actor_learner cannot run without communication, because learners receive their samples"
            " from actors"
        )
    batch = data_parallel.inputs(facts, batching.largest * batching.accumulate)
    roles = mesh.size(Dim.ROLE)
    backend = case.backend
    learner = traffic.all_reduce(float(trained_bytes(model)), mesh.size(Dim.DP))
    learner += traffic.broadcast(payload, roles, 0, backend)
    actor = traffic.sent(float(batch.nbytes)) + traffic.broadcast(payload, roles, 1, backend)
    return traffic.expected(
        [actor if mesh.place(rank, Dim.ROLE) else learner for rank in range(case.world_size)],
        largest=payload,
        module=type(model).__name__,
        ideal_efficiency=1.0 / mesh.size(Dim.ROLE),
        memory_bytes=training_bytes(
            facts.num_params, next(model.parameters()).element_size(), facts, batching.largest
        ),
        formula="2 (L-1)/L bytes(P) + bytes(P); an actor sends bytes(samples)",
        global_batch=batching.global_batch,
        stages=mesh.size(Dim.ROLE),
    )


class RolePair(LocalTrainer):
    """The trainer of a learner or an actor.

    The actor sends samples to the learner at the start of a step, and the learner sends weights at
    its end. ``acts`` is True on actors, which run ``passes`` forward passes per batch. ``pair`` is
    the process group of the two ranks, or None on a single rank.
    """

    pair: dist.ProcessGroup | None = None
    acts = False
    passes = 1

    def step(self, batch: Batch) -> Tensor | None:
        """Run one step and return the loss, or None on an actor."""
        if self.pair is None:
            return super().step(batch)
        if self.acts:
            with span("generate"), torch.no_grad(), self.ctx.forward():
                for _ in range(self.passes):
                    self.module(batch.inputs)
        given = batch.inputs if self.acts else torch.empty_like(batch.inputs)
        with span("samples", Category.COMMUNICATION):
            if self.acts:
                dist.send(given, group=self.pair, group_dst=0)
            else:
                dist.recv(given, group=self.pair, group_src=1)
        loss = None if self.acts else super().step(replace(batch, inputs=given))
        with span("weights", Category.COMMUNICATION):
            flat = outer.vector(self.module)
            dist.broadcast(flat, group=self.pair, group_src=0)
            if self.acts:
                outer.fill(self.module, flat)
        return loss

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients of the last step; actors receive them from their learners."""
        for name, parameter in self.named():
            if not parameter.requires_grad:
                continue
            received = parameter.grad
            gradient = torch.empty_like(parameter) if received is None else received.detach()
            if self.pair is not None:
                dist.broadcast(gradient, group=self.pair, group_src=0)
            yield name, gradient


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Build an actor or a learner; learners average all gradients in one message after backward."""
    learners = groups.group(ctx, Dim.DP) if ctx.mesh.size(Dim.DP) > 1 else None

    def average() -> None:
        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        if learners is not None:
            flat = torch.cat([tensor.flatten() for tensor in gradients]) / learners.size()
            dist.all_reduce(flat, group=learners)
            parts = flat.split([tensor.numel() for tensor in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    trainer = RolePair(model, ctx, average=average)
    if ctx.mesh.size(Dim.ROLE) > 1:
        trainer.pair = groups.group(ctx, Dim.ROLE)
        trainer.acts = ctx.mesh.place(ctx.rank, Dim.ROLE) == 1
        trainer.passes = int(knobs["passes"])
    trainer.resumable = False  # an actor has no optimizer state
    return trainer
