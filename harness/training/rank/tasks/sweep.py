"""Task ``sweep``: check and time every collective at every payload size, in one launch."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from harness.cases import CaseSpec
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import LaunchSpec, Sweep
from harness.record import Row
from harness.record.fabric import OPERATIONS, sizes
from harness.training.accelerator import Accelerator
from harness.training.observe import collectives
from harness.training.rank import transport
from harness.training.rank.setup import Rank

#: Seconds that the timed iterations of one operation at one size should take together.
BUDGET_S = 0.1
#: Smallest and largest number of timed iterations of one operation at one size.
FEWEST_ITERATIONS = 3
MOST_ITERATIONS = 30
#: Number of runs between two events on a device. A single run would include the time that the host
#: takes to queue it.
IN_A_ROW = 5


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A collective on prepared buffers.

    ``run`` executes it, and ``right`` returns whether its result is correct. ``ready`` prepares the
    buffers for repeated runs.
    """

    run: Callable[[], object]
    right: Callable[[], bool]
    ready: Callable[[], object] = lambda: None


def all_reduce(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make an all-reduce of ``count`` float32 elements on ``n`` ranks.

    Each rank contributes rank + 1. Timed runs add zeros, because other sums would grow.
    """
    data = torch.full((count,), float(rank + 1), device=device)
    return Operation(
        run=lambda: dist.all_reduce(data),
        right=lambda: bool((data == n * (n + 1) / 2).all()),
        ready=data.zero_,
    )


def all_gather(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make an all-gather with a result of ``count`` elements, in which part i must hold i + 1."""
    part = torch.full((max(1, count // n),), float(rank + 1), device=device)
    whole = torch.zeros(part.numel() * n, device=device)
    return Operation(
        run=lambda: dist.all_gather_into_tensor(whole, part), right=lambda: _parts(whole, n)
    )


def reduce_scatter(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make a reduce-scatter of ``count`` elements. Each rank receives one part of the sum."""
    whole = torch.full((max(1, count // n) * n,), float(rank + 1), device=device)
    part = torch.zeros(whole.numel() // n, device=device)
    return Operation(
        run=lambda: dist.reduce_scatter_tensor(part, whole),
        right=lambda: bool((part == n * (n + 1) / 2).all()),
    )


def all_to_all(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make an all-to-all of ``count`` elements, in which part i is received from rank i."""
    given = torch.full((max(1, count // n) * n,), float(rank + 1), device=device)
    received = torch.zeros_like(given)
    return Operation(
        run=lambda: dist.all_to_all_single(received, given), right=lambda: _parts(received, n)
    )


def broadcast(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make a broadcast of ``count`` elements from rank 0."""
    data = torch.full((count,), float(rank + 1), device=device)
    return Operation(run=lambda: dist.broadcast(data, 0), right=lambda: bool((data == 1.0).all()))


def send_recv(rank: int, n: int, count: int, device: torch.device) -> Operation:
    """Make a ring of sends: each rank receives ``count`` elements from the rank before it."""
    given = torch.full((count,), float(rank + 1), device=device)
    received = torch.zeros(count, device=device)
    after, before = (rank + 1) % n, (rank - 1) % n

    def run() -> None:
        """Send to the next rank and receive from the previous one, and wait for both."""
        ops = [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return Operation(run=run, right=lambda: bool((received == before + 1.0).all()))


def _parts(whole: Tensor, n: int) -> bool:
    """Return whether part i of ``n`` equal parts holds i + 1."""
    wanted = torch.arange(1.0, n + 1, device=whole.device)
    return bool((whole.view(n, -1) == wanted[:, None]).all())


MAKERS: Mapping[str, Callable[[int, int, int, torch.device], Operation]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send_recv": send_recv,
}
if set(MAKERS) != set(OPERATIONS):
    raise AssertionError(
        "MAKERS must have exactly the operations of harness.record.fabric.OPERATIONS"
    )


def prepare(spec: LaunchSpec, nccl_log: Path) -> None:
    """Make NCCL log which connections it uses. This task has no model to import."""
    collectives.enable(collectives.LAST)
    transport.listen(spec.case.backend, nccl_log)


def run(task: Sweep, rank: Rank) -> tuple[Row, ...]:
    """Measure all rows of the sweep, and return them. All ranks return the same rows."""
    rows = sweep(
        rank.spec.case,
        rank.place.rank,
        rank.accelerator,
        task.only,
        lambda: rank.beat(Phase.GATE),
        rank.file("nccl"),
    )
    return tuple(rows)


def sweep(
    case: CaseSpec,
    rank: int,
    accelerator: Accelerator,
    only: str,
    beat: Callable[[], None],
    log: Path,
) -> list[Row]:
    """Check and time the collectives, and return a row for each operation and payload size.

    Rows are equal on all ranks: times are measured on the slowest rank, and a result is right if it
    is right on all ranks. ``only`` selects one operation with the largest payload. "" selects all
    operations with all payloads. ``log`` is the path of NCCL's log. It is read at the end, because
    NCCL opens a connection only when it needs it.
    """
    n = case.world_size
    rows = list[Row]()
    device = accelerator.device
    payloads = sizes(case.device)[-1:] if only else sizes(case.device)
    for operation, make in MAKERS.items():
        for payload in payloads if only in ("", operation) else ():
            beat()
            row = Row(nodes=case.nodes, operation=operation, payload_bytes=payload, transport="")
            try:
                made = make(rank, n, max(1, payload // 4), device)
                made.run()
            except (RuntimeError, NotImplementedError) as error:
                reason = str(error).splitlines()[0]
                if not any(word in reason.lower() for word in ("not support", "not implement")):
                    raise  # any other error means that the fabric is broken
                rows.append(replace(row, refused=reason))
                break  # the backend refuses it on all ranks and at every size
            right = torch.tensor([float(made.right())], device=device)
            dist.all_reduce(right, dist.ReduceOp.MIN)
            made.ready()
            first_s = _timed(made.run, 1, accelerator)[0]
            times = _timed(
                made.run,
                min(MOST_ITERATIONS, max(FEWEST_ITERATIONS, int(BUDGET_S / first_s))),
                accelerator,
            )
            median_s = statistics.median(times)
            worst_s = max(times)
            rows.append(replace(row, time_s=median_s, worst_s=worst_s, right=bool(right.item())))
    over = transport.name(case.backend, log)
    return [replace(row, transport=over) for row in rows]


def _timed(run: Callable[[], object], times: int, accelerator: Accelerator) -> list[float]:
    """Return the seconds of each of ``times`` runs on the slowest rank.

    On an accelerator each value is the mean of ``IN_A_ROW`` runs. This is a collective of all
    ranks.
    """
    seconds = []
    for _ in range(times):
        dist.barrier()
        began = time.perf_counter()
        if accelerator.present:
            seconds.append(_in_a_row(run, accelerator))
            continue
        run()
        seconds.append(time.perf_counter() - began)
    slowest = torch.tensor(seconds, dtype=torch.float64, device=accelerator.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(v) for v in slowest.tolist()]


def _in_a_row(run: Callable[[], object], accelerator: Accelerator) -> float:
    """Return the mean seconds of ``IN_A_ROW`` runs, measured with events on the device."""
    first, last = accelerator.events(2)
    first.record()
    for _ in range(IN_A_ROW):
        run()
    last.record()
    accelerator.synchronize()
    return first.elapsed_time(last) / 1e3 / IN_A_ROW
