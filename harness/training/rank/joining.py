"""Open the process group of a rank, and the barrier that is used outside of the timed window."""

import contextlib
import itertools
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.base import programs
from harness.cases import CaseSpec, Dim, Supports
from harness.cases.heads import facts, read_head
from harness.launch.wire.messages import LaunchSpec

#: The backend for tensors in the host's memory, if a case exchanges tensors there as well as on its
#: GPUs.
HOST_BACKEND = "gloo"
#: Parts of error messages that only report the end of another rank. Letter case is ignored.
PEER_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "failed to connect",
    "connection was likely closed",
    "recvValue failed",
    "remote process exited",
    "Connection was closed",
    "Application timeout caused pair closure",
    "Read timeout",
    "wait timeout after",
    "Watchdog caught collective operation timeout",
    "communicator was aborted",
    "ncclRemoteError",
)


def reports_peer(message: str) -> bool:
    """Return whether an error message only reports that another rank has ended."""
    return any(text.lower() in message.lower() for text in PEER_ERRORS)


def join(spec: LaunchSpec, store: dist.Store, rank: int, device: torch.device) -> None:
    """Open the default process group with the backend that the case states.

    A world that does not communicate gets torch's ``fake`` backend.
    """
    case = spec.case
    backend = case.backend if case.communicate else "fake"
    nccl = backend == "nccl"
    supports = _supports(spec)
    if nccl and _exchanges_on_host(case, supports):
        backend = f"cpu:{HOST_BACKEND},{device.type}:{backend}"
    alone = case.world_size == 1  # a single rank needs no communicator
    at_once = nccl and not alone and not _in_pairs(case, supports)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=case.world_size,
        timeout=timedelta(seconds=spec.deadlines.collective_s),
        device_id=device if at_once else None,
        pg_options=_prioritised() if case.priority_stream and nccl else None,
    )


def carrier(device: torch.device) -> str:
    """Return the backend that carries a device's tensors, or "" if there is no process group."""
    if not dist.is_initialized():
        return ""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return backends.get(device.type, dist.get_backend())


def _supports(spec: LaunchSpec) -> Supports | None:
    """Return what the case's strategy supports, as its file states it, or None without a strategy.

    A user's file is parsed here, not imported. A user's script and a sweep of collectives have no
    strategy.
    """
    file = spec.files.get("strategies")
    if file is None:
        return None
    if file.endswith(".py"):
        _, head = read_head(Path(file))
        return facts(Supports, head["SUPPORTS"], file)
    return facts(Supports, programs.load_module(file).SUPPORTS, file)


def _in_pairs(case: CaseSpec, supports: Supports | None) -> bool:
    """Return whether ranks send to each other in pairs, as the stages of a pipeline do.

    Such a world does not get its communicator at the start, because NCCL would then run all sends
    and receives on the stream of that communicator. Without it, torch opens a communicator for each
    pair of ranks when it issues a single send or receive
    (https://github.com/pytorch/pytorch/issues/132900). Batches of sends and receives, as in the
    steady state of 1F1B, always use the world's communicator
    (torch.distributed.pipelining.schedules, ``_batch_p2p``).
    """
    return supports is not None and supports.mesh(case).size(Dim.PP) > 1


def _prioritised() -> Any:
    """Return options with which NCCL's kernels run on a stream of high priority."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    return options


def _exchanges_on_host(case: CaseSpec, supports: Supports | None) -> bool:
    """Return whether ranks also exchange tensors in the host's memory.

    This is so if the strategy can keep shards on the host and its knob for that is set.
    """
    if supports is None or not supports.on_host:
        return False
    return bool(case.knobs.get(f"{case.strategy}.{supports.on_host}"))


class Barrier:
    """A barrier of all ranks.

    It uses the process group. A world that does not communicate uses the rendezvous store instead.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, communicate: bool) -> None:
        self._store = store
        self._rank = rank
        self._others = world_size - 1
        self._communicate = communicate
        self._count = itertools.count()

    def __call__(self) -> None:
        """Wait until all ranks have called this."""
        if not self._others:
            return
        if self._communicate:
            dist.barrier()
            return
        key = f"meeting{next(self._count)}"
        if self._store.add(key, 1) > self._others:
            self._store.set(f"{key}/all", "here")
        self._store.wait([f"{key}/all"])

    def part(self) -> None:
        """Wait for all ranks for the last time.

        Rank 0 hosts the store, so it must not exit before all other ranks are done with it.
        """
        if self._communicate or not self._others:
            self()
        elif self._rank:
            # Rank 0 may exit before its answer to this request arrives.
            with contextlib.suppress(dist.DistNetworkError):
                self._store.add("parted", 1)
        else:
            while self._store.add("parted", 0) < self._others:
                time.sleep(0.001)
