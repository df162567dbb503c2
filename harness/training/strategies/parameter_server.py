"""Parameter server: each rank sends updates to a server and receives the updated parameters.

Rank 0 runs the server. A rank exchanges messages with it over RPC after every step.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import autograd, rpc
from torch.distributed.rpc import api, backend_registry

from harness.cases import Batching, CaseSpec
from harness.record import ExecutedModel, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer

SUPPORTS = dict(recovers=False, worlds="any", oracle="simulated", beside="ddp", initial="broadcast")
#: ``staleness`` is the largest number of steps by which a rank may be ahead of the slowest rank; 0
#: makes training bulk synchronous (Ho et al., 2013). ``bounded=False`` removes this limit.
KNOBS = dict(staleness=0, bounded=True)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect a message of all parameters from each rank to the server on rank 0, and one back."""
    payload = outer.payload(model)
    n = case.world_size
    if not case.communicate:
        raise ValueError(
            "parameter_server cannot run without communication, because ranks train on parameters"
            " from the server"
        )
    sent = [traffic.Traffic(payload * (n - 1 if rank == 0 else 1)) for rank in range(n)]
    like = outer.expected(case, model, batching, facts, 1, sent[0], "bytes(P) each way", states=1)
    return replace(
        like,
        **traffic.counted(sent if n > 1 else [traffic.Traffic()]),
        largest_message=payload,
        formula=f"bytes(P), and {n - 1} bytes(P) on rank 0",
        staleness=int(knobs["staleness"]) if knobs["bounded"] else None,
        repeatable=_lock_step(knobs) or n == 1,
    )


def _lock_step(knobs: Knobs) -> bool:
    """Return whether all ranks wait for each other in every step."""
    return bool(knobs["bounded"]) and not knobs["staleness"]


class Server:
    """The server that collects the ranks' updates by step.

    It answers a rank as soon as the slowest rank is at most ``staleness`` steps behind that rank.
    ``agreed`` holds the parameters that include the updates of all steps that every rank has taken.
    """

    def __init__(self, start: Tensor, ranks: int, staleness: float) -> None:
        self.agreed = start.clone()
        self.ranks = ranks
        self.staleness = staleness
        self.moved: dict[int, dict[int, Tensor]] = {}
        self.steps = [-1] * ranks
        self.waiting: list[tuple[int, torch.futures.Future[Any]]] = []
        self.turn = threading.Lock()

    def exchange(self, rank: int, step: int, moved: Tensor) -> torch.futures.Future[Any]:
        """Store the update of a rank, and return a future of the answer.

        The answer holds the parameters and, for each rank, the last step whose update they include.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self.turn:
            self.steps[rank] = step
            self.moved.setdefault(step, {})[rank] = moved
            self.waiting.append((step, future))
            near = [w for w in self.waiting if w[0] - min(self.steps) <= self.staleness]
            self.waiting = [w for w in self.waiting if w not in near]
            answers = [(asked, self.shown(at)) for at, asked in near]
            self._settle()
        for asked, answer in answers:
            asked.set_result(answer)
        return future

    def shown(self, step: int) -> tuple[Tensor, tuple[int, ...]]:
        """Return the parameters after all updates that were received up to this step.

        Updates are added in the order of steps and ranks. Also return, for each rank, the last step
        whose update the parameters include.
        """
        shown = self.agreed.clone()
        for moved_at in sorted(s for s in self.moved if s <= step):
            for rank in sorted(self.moved[moved_at]):
                shown += self.moved[moved_at][rank] / self.ranks
        return shown, tuple(min(step, s) for s in self.steps)

    def _settle(self) -> None:
        """Merge the updates of steps that all ranks have taken into ``agreed``."""
        for step in sorted(s for s, parts in self.moved.items() if len(parts) == self.ranks):
            if any(asked < step for asked, _ in self.waiting):
                return
            for rank in range(self.ranks):
                self.agreed += self.moved[step][rank] / self.ranks
            del self.moved[step]


#: The servers on rank 0. The index of a server is the number of the worker that created it.
_SERVERS: list[Server] = []


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _asked(number: int, rank: int, step: int, moved: Tensor) -> torch.futures.Future[Any]:
    """Run ``exchange`` on rank 0 for a worker that calls this by RPC."""
    return _SERVERS[number].exchange(rank, step, moved)


class Worker:
    """The rule that a rank applies after each step.

    It sends the rank's update and replaces the rank's parameters by the server's parameters.
    ``seen`` holds, for each rank, the last step whose update the parameters of this rank include.
    """

    def __init__(self, model: nn.Module, ctx: RankContext, knobs: Knobs) -> None:
        self.model = model
        self.rank = ctx.rank
        self.ranks = ctx.world_size
        self.shown = outer.vector(model).cpu()
        self.number = len(_SERVERS)
        bound = float(knobs["staleness"]) if knobs["bounded"] else math.inf
        _SERVERS.append(Server(self.shown, self.ranks, bound))
        self.seen: tuple[int, ...] = ()
        self.staleness = 0
        if self.ranks > 1:
            _connect(self.rank, self.ranks)
            dist.barrier()  # no rank may call the server before it exists

    def after(self, step: int) -> None:
        if self.ranks == 1:
            return
        moved = outer.vector(self.model).cpu() - self.shown
        given = (self.number, self.rank, step, moved)
        answer = _asked(*given) if self.rank == 0 else rpc.rpc_async("rank0", _asked, given)
        self.shown, self.seen = answer.wait()
        self.staleness = max(self.staleness, step - min(self.seen))
        outer.fill(self.model, self.shown.to(next(self.model.parameters()).device))


def _connect(rank: int, ranks: int) -> None:
    """Start RPC over TCP only, because the bytes of TCP can be counted.

    Ranks meet in the default store.
    """
    if api._is_current_rpc_agent_set():
        return
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=max(4, min(ranks, 64)),
        rpc_timeout=0,
        _transports=["uv"],
        _channels=["basic"],
    )
    store = dist.PrefixStore("rpc", dist.distributed_c10d._get_default_store())
    kind = backend_registry.BackendType["TENSORPIPE"]
    autograd._init(rank)  # ``init_rpc`` also does this, but opens a second store
    rpc._init_rpc_backend(kind, store, f"rank{rank}", rank, ranks, options)


class Simulation:
    """The reference run with the models of all ranks in one process.

    ``seen`` holds the field ``seen`` of each rank's worker. Each model of the reference therefore
    includes the same updates as the rank's model.
    """

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.start = outer.vector(models[0])
        self.shown = [self.start.clone() for _ in models]
        self.moved: list[list[Tensor]] = []
        self.seen: Sequence[Sequence[int]] = ()

    def after(self, step: int) -> None:
        ranks = len(self.models)
        if ranks == 1:
            return
        self.moved.append(
            [
                outer.vector(model) - shown
                for model, shown in zip(self.models, self.shown, strict=True)
            ]
        )
        in_step = [[step] * ranks] * ranks
        for rank, known in enumerate(self.seen or in_step):
            shown = self.start.clone()
            for moved_at, parts in enumerate(self.moved):
                for other, part in enumerate(parts):
                    if moved_at <= known[other]:
                        shown += part / ranks
            self.shown[rank] = shown
            outer.fill(self.models[rank], shown)


class ServedTrainer(OuterTrainer):
    """A trainer that also reports the largest staleness (in steps) of the parameters it used."""

    rule: Worker

    def ran(self) -> ExecutedModel:
        return replace(super().ran(), staleness=self.rule.staleness)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx, ServedTrainer)
    trainer.rule = Worker(model, ctx, knobs)
    return trainer
