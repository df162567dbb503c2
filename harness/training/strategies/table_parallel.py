"""Table parallel: embedding tables are divided among the ranks, all other weights are replicated.

All-to-all exchanges send the rows that each rank looks up.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training import optimizers
from harness.training.context import Knobs, RankContext
from harness.training.parallel import traffic
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer, element_bytes, training_bytes

SUPPORTS = dict(
    recovers=False, worlds="any", oracle="shard_ordered", initial="same_seed", compiles=False,
    replicas=True, needs=("TABLES",), precisions=("fp32", "bf16"),
)  # fmt: skip

#: Bytes of a row index, an int64.
NUMBER = 8


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect three all-to-alls for the tables, and an all-reduce of all other gradients.

    The first all-to-all sends row indices to the ranks that hold the tables, the second sends the
    rows back, and the third sends the gradients of the rows to the tables. The rank of a table then
    has its whole gradient.
    """
    tables = tables_of(model)
    n = case.world_size
    if not case.communicate or case.checkpoint:
        raise ValueError(
            "table_parallel fetches rows from other ranks once per forward pass; it supports"
            " neither a run without communication nor checkpoint=True"
        )
    if n > len(tables.rows):
        raise ValueError(
            f"the model has {len(tables.rows)} tables; expected at least one for each of {n} ranks"
        )
    if len(set(batching.micros)) > 1 or case.last_batch < 1:
        raise ValueError(
            "table_parallel needs equally many samples on all ranks; expected the default shares"
            " and last_batch"
        )
    optimizers.refuse(case, "tables that are divided among the ranks")
    size = element_bytes(model)
    owned = shared_out(tables.rows, n)
    held = [sum(tables.rows[i] for i in mine) * tables.d for mine in owned]
    dense = sum(parameter.numel() for parameter in model.parameters()) - sum(tables.rows) * tables.d
    samples = batching.micros[0]
    whole = traffic.all_reduce(float(dense * size), n)
    row = samples * tables.d * size
    sent = []
    for mine in owned:
        others = len(tables.rows) - len(mine)
        asked = _part(samples * others * NUMBER, samples * len(tables.rows) * NUMBER)
        given = _part((n - 1) * row * len(mine), n * row * len(mine))
        back = _part(row * others, row * len(tables.rows))
        more = (asked + given + back) * batching.accumulate
        sent.append(more + whole if n > 1 else Traffic())
    return traffic.expected(
        sent,
        module="DistributedDataParallel",
        placements=("apart",),
        reorders=True,  # a table's rank adds gradients over all samples, not rank by rank
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(dense + max(held), size, facts, batching.largest),
        formula="(T-t) B 8 + ((N-1) t + T - t) B row + 2 (N-1)/N bytes(dense)",
        global_batch=batching.global_batch,
    )


def _part(sent: float, payload: float) -> Traffic:
    """Return the traffic of an all-to-all whose parts differ in size."""
    return Traffic(float(sent), {"all_to_all": float(payload)}, float(payload))


def tables_of(model: nn.Module) -> Any:
    """Return the module that holds the tables; the model file names it with ``TABLES``."""
    return model.get_submodule(str(model.tables))


def shared_out(rows: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the indices of the tables that each rank holds.

    The tables are assigned in the order of their length, the longest first. Each table goes to the
    rank with the fewest rows. If several ranks have equally few rows, it goes to the one with the
    fewest tables.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for table in sorted(range(len(rows)), key=lambda i: -rows[i]):
        rank = min(range(ranks), key=lambda r: (sum(rows[i] for i in shares[r]), len(shares[r])))
        shares[rank].append(table)
    return [sorted(mine) for mine in shares]


class _Exchanged(torch.autograd.Function):
    """A differentiable ``exchanged``, whose backward sends the gradients back to the senders."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[int], got: list[int]) -> Tensor:
        ctx.parts = given, got
        return exchanged(x, given, got)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        given, got = ctx.parts
        return exchanged(gradients[0].contiguous(), got, given), None, None


def exchanged(x: Tensor, given: list[int], got: list[int]) -> Tensor:
    """Exchange rows (slices along dimension 0) by an all-to-all, and return the received rows.

    ``given`` holds the number of rows sent to each rank, and ``got`` the number received from
    each rank.
    """
    out = x.new_empty((sum(got), *x.shape[1:]))
    dist.all_to_all_single(out, x, got, given)
    return out


class TableTrainer(LocalTrainer):
    """A trainer that broadcasts the tables to all ranks for the correctness check.

    ``owners`` maps the name of a table to the rank that holds it and the table's shape.
    """

    owners: dict[str, tuple[int, torch.Size]]

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        mine = {
            name: parameter.grad for name, parameter in self.named() if parameter.grad is not None
        }
        return self._all({name: grad.detach() for name, grad in mine.items()})

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        return self._all({name: parameter.detach() for name, parameter in self.named()})

    def _all(self, mine: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        like = next(iter(mine.values()))
        yield from ((name, tensor) for name, tensor in mine.items() if name not in self.owners)
        for name, (owner, shape) in self.owners.items():
            whole = mine[name] if owner == self.ctx.rank else like.new_empty(shape)
            if self.ctx.world_size > 1:
                dist.broadcast(whole, src=owner)
            yield name, whole


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Divide the tables among the ranks, and wrap all other weights in DDP."""
    tables = tables_of(model)
    name = str(model.tables)
    owned = shared_out(tables.rows, ctx.world_size)
    mine = owned[ctx.rank]
    owners = {
        f"{name}.table{i}": (rank, getattr(tables, f"table{i}").shape)
        for rank, some in enumerate(owned)
        for i in some
    }
    if ctx.world_size > 1:
        for i in set(range(len(tables.rows))) - set(mine):
            delattr(tables, f"table{i}")
        tables.forward = partial(_looked_up, tables, owned, ctx.rank)
    held = [getattr(tables, f"table{i}") for i in mine]
    ignored = [f"{name}.table{i}" for i in mine]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    ddp = DistributedDataParallel(
        model,
        device_ids=None if ctx.device.index is None else [ctx.device],
        gradient_as_bucket_view=True,
    )

    def synchronise(last: bool) -> None:
        ddp.require_backward_grad_sync = last

    def average() -> None:
        """Divide the gradients of tables by the world size.

        A rank's loss is the mean over its samples. A table's gradient is the sum of the gradients
        of all these losses, so it is divided to get the gradient of their mean.
        """
        for parameter in held:
            parameter.grad /= ctx.world_size

    trainer = TableTrainer(
        ddp,
        ctx,
        named=lambda: ((n.removeprefix("module."), p) for n, p in ddp.named_parameters()),
        synchronise=synchronise,
        average=average,
        placements=("apart",),
    )
    trainer.owners = owners
    return trainer


def _looked_up(tables: Any, owned: Sequence[Sequence[int]], rank: int, rows: Tensor) -> Tensor:
    """Look up rows of the tables of all ranks for this rank's samples.

    ``rows`` holds row indices of shape (B, tables); the result has the shape (B, tables, d).
    """
    samples = rows.shape[0]
    ranks = len(owned)
    mine = owned[rank]
    asked = [samples * len(some) for some in owned]
    given = [samples * len(mine)] * ranks
    by_owner = torch.cat([rows[:, some].flatten() for some in owned])
    for_me = exchanged(by_owner, asked, given).view(ranks * samples, len(mine))
    answers = tables.looked_up(for_me, mine).flatten(0, 1)
    back: Tensor = _Exchanged.apply(answers, given, asked)  # type: ignore[no-untyped-call]
    parts = back.split(asked)
    looked_up = torch.cat([part.view(samples, -1, tables.d) for part in parts], 1)
    order = torch.tensor([i for some in owned for i in some], device=rows.device)
    return looked_up[:, order.argsort()]
