"""Simulate one rank of a large world alone in its process, and record its collectives.

torch's fake backend completes every collective at once, with undefined values. The values are not
used, because the operations and their bytes do not depend on them.
"""

import contextlib
import multiprocessing
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cases import CaseSpec, Catalogue, Dim
from harness.record import Expected, exchanges
from harness.training.context import Loaded, RankContext, load, make_batch, own_batch
from harness.training.data import Sampler
from harness.training.describe import case_batching, expect, model_facts
from harness.training.parallel import data_parallel, depth
from harness.training.parallel.schedule import Schedule

#: Operators of c10d and of functional collectives -> their names in closed forms.
OPERATIONS = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce", "all_reduce_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_base_": "all_to_all", "alltoall_": "all_to_all", "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast", "broadcast": "broadcast", "send": "send", "reduce_": "reduce",
}  # fmt: skip
#: The position of an operator's input argument, if it is not the first one.
INPUT = {
    "_allgather_base_": 1, "allgather_": 1, "allgather_into_tensor_coalesced_": 1,
    "_reduce_scatter_base_": 1, "reduce_scatter_": 1, "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_base_": 1, "alltoall_": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Dry:
    """Calls and bytes of each operation in one period, and the promised bytes."""

    calls: Mapping[str, int]
    issued: Mapping[str, int]
    promised: Mapping[str, float]


class Recorder(TorchDispatchMode):
    """A dispatch mode that records every collective."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.issued = Counter[str](), Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.split("::")[-1]
        if func.namespace in ("c10d", "_c10d_functional") and name in OPERATIONS:
            self.calls[OPERATIONS[name]] += 1
            self.issued[OPERATIONS[name]] += _bytes(args[INPUT.get(name, 0)])
        return func(*args, **(kwargs or {}))


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes(part) for part in value)


class _Answered:
    """A completed work whose future holds its tensors, as those of real backends do."""

    def __init__(self, work: Any, tensors: list[Tensor]) -> None:
        self._work, self._tensors = work, tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextlib.contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """Open a process group whose other ranks do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    reduce = dist.all_reduce

    def all_reduce(tensor: Tensor, *args: Any, **more: Any) -> Any:
        work = reduce(tensor, *args, **more)
        return work if work is None else _Answered(work, [tensor])

    dist.all_reduce = all_reduce
    try:
        yield
    finally:
        dist.all_reduce = reduce
        dist.destroy_process_group()


def _hooked() -> None:
    """Replace DDP's reduction, which needs a future that the fake backend leaves empty."""
    made = torch.nn.parallel.DistributedDataParallel.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        register = self.register_comm_hook
        listed: list[Any] = []

        def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            if listed:
                return listed[0](listed[1], bucket)
            dist.all_reduce(bucket.buffer(), group=self.process_group)
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        register(None, hook)
        self.register_comm_hook = lambda state, theirs: listed.extend((theirs, state))

    torch.nn.parallel.DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def _staged(loaded: Loaded, case: CaseSpec) -> None:
    """Compute the shapes that pipeline stages would otherwise send each other."""
    from torch.distributed.pipelining import stage
    from torch.distributed.pipelining._utils import extract_tensor_metas

    facts, model = model_facts(loaded, case)
    knobs = loaded.knobs(case)
    plan = Schedule.of(knobs, loaded.supports.mesh(case).size(Dim.PP))
    x = data_parallel.inputs(facts, case_batching(loaded, case).largest // plan.micro)
    given = []
    for names in depth.cuts(depth.flops_of(model, x), plan.stages, knobs["split"]):
        given.append(torch.zeros(x.shape, dtype=x.dtype, requires_grad=x.is_floating_point()))
        x = depth.stage(model, names)(x)

    def meta(self: Any, source: int) -> Any:
        if source < self.stage_index:
            return stage._StageForwardMeta(extract_tensor_metas((given[self.stage_index],)))
        return stage._StageBackwardMeta(stage._derive_grad_metas(self._stage_meta.outputs))

    stage.PipelineStage._recv_meta = meta  # type: ignore[method-assign]


def context(loaded: Loaded, case: CaseSpec, rank: int) -> RankContext:
    """Return the context of a strategy on one rank."""
    mesh = loaded.supports.mesh(case)
    return RankContext(
        case=case, rank=rank, world_size=case.world_size, device=torch.device("cpu"),
        batching=case_batching(loaded, case), loss=loaded.model.loss,
        compressor=loaded.compressor(case), mesh=mesh, shard=mesh.shard(rank),
        sample=lambda count: (
            make_batch(
                loaded, case, torch.zeros(count, dtype=torch.int64), torch.device("meta")
            ).inputs
        ),
    )  # fmt: skip


def train(case: CaseSpec, rank: int, files: Mapping[str, str]) -> Dry:
    """Return the operations of one period of a rank's steps, after DDP has rebuilt its buckets, and
    after the steps with uncompressed gradients."""
    loaded = load(files)
    case = loaded.at_once(case)
    facts, model = model_facts(loaded, case)
    expected = expect(loaded, case, model, facts)
    if loaded.supports.mesh(case).size(Dim.PP) > 1:
        _staged(loaded, case)
    with world(rank, case.world_size):
        ctx = context(loaded, case, rank)
        sampler = Sampler(ctx.batching, steps_per_epoch=8, seed=case.seed)
        trainer = loaded.build(case, ctx, case.seed)
        behind = max([2, *(stop for _, stop, _ in expected.whole_steps)])
        first = -(-behind // expected.period) * expected.period
        recorder = Recorder()
        for step in range(first + expected.period):
            batch = own_batch(loaded, ctx, sampler.ids(step, ctx.shard))
            with recorder if step >= first else contextlib.nullcontext():
                trainer.step(batch)
    times = expected.period * exchanges(
        range(first, first + expected.period), expected.period, expected.until, expected.growth
    )
    return Dry(dict(recorder.calls), dict(recorder.issued), _of(expected, rank, times))


def _of(expected: Expected, rank: int, times: float) -> dict[str, float]:
    return {
        name: of_ranks[rank] * times
        for name, of_ranks in expected.payload_bytes.items()
        if of_ranks[rank]
    }


def _child(work: Callable[..., Any], given: tuple[Any, ...], pipe: Any) -> None:
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # torch's warnings about its next versions
        _hooked()
        pipe.send(work(*given))
    except ValueError as error:
        pipe.send(str(error))
    except BaseException:
        pipe.send(traceback.format_exc())
        raise


def dry(case: CaseSpec, rank: int) -> Dry | str:
    """Return what a rank issues, or the reason if the strategy does not support that size."""
    outcome: Dry | str = apart(train, case, rank, Catalogue().files(case))
    return outcome


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a function in a separate process, or its error."""
    mine, its = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(work, given, its))
    child.start()
    its.close()
    answer = mine.recv()
    child.join()
    return answer
