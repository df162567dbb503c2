"""Table parallel: embedding tables shared out over ranks, all else replicated; rows all-to-all."""

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

#: Bytes of a row's number.
NUMBER = 8


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Numbers of rows to where their tables are, rows back, their gradients there again; and an
    all-reduce of all else.

    Tables' gradients are complete where they are.
    """
    tables = tables_of(model)
    n = case.world_size
    if not case.communicate or case.checkpoint:
        raise ValueError("tables are elsewhere: rows are asked for once, with communication")
    if n > len(tables.rows):
        raise ValueError(f"{len(tables.rows)} tables do not give each of {n} ranks one")
    if len(set(batching.micros)) > 1 or case.last_batch < 1:
        raise ValueError("ranks ask for equally many rows: leave shares and last_batch as they are")
    optimizers.refuse(case, "tables of which each rank has some")
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
        reorders=True,  # a table's owner adds all samples at once, not rank by rank
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(dense + max(held), size, facts, batching.largest),
        formula="(T-t) B 8 + ((N-1) t + T - t) B row + 2 (N-1)/N bytes(dense)",
        global_batch=batching.global_batch,
    )


def _part(sent: float, payload: float) -> Traffic:
    """An all-to-all of parts that are not equally large."""
    return Traffic(float(sent), {"all_to_all": float(payload)}, float(payload))


def tables_of(model: nn.Module) -> Any:
    """The module of tables that the model's head names."""
    return model.get_submodule(str(model.tables))


def shared_out(rows: Sequence[int], ranks: int) -> list[list[int]]:
    """Tables by rank: the longest first, each to the rank that has fewest rows, or no table yet."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for table in sorted(range(len(rows)), key=lambda i: -rows[i]):
        rank = min(range(ranks), key=lambda r: (sum(rows[i] for i in shares[r]), len(shares[r])))
        shares[rank].append(table)
    return [sorted(mine) for mine in shares]


class _Exchanged(torch.autograd.Function):
    """Parts of dim 0, so many to each rank; backwards their gradients come back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[int], got: list[int]) -> Tensor:
        ctx.parts = given, got
        return exchanged(x, given, got)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        given, got = ctx.parts
        return exchanged(gradients[0].contiguous(), got, given), None, None


def exchanged(x: Tensor, given: list[int], got: list[int]) -> Tensor:
    """An all-to-all of rows of dim 0: ``given`` to each rank, ``got`` from each."""
    out = x.new_empty((sum(got), *x.shape[1:]))
    dist.all_to_all_single(out, x, got, given)
    return out


class TableTrainer(LocalTrainer):
    """Shows all tables, each from the rank that has it; their gradients are averaged here."""

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
    """Tables keep out of DDP; each rank's are asked by all ranks."""
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
        """Every rank's loss is a mean of its own samples; the gradient is of the mean over all."""
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
    """Rows (B, tables) of this rank's samples -> (B, tables, d), from wherever they are."""
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
