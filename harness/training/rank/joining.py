"""How a rank joins its world, and the barrier outside of the timed window."""

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

#: Pings and the like are of the host whatever a case's ranks exchange.
HOST_BACKEND = "gloo"


def join(spec: LaunchSpec, store: dist.Store, rank: int, device: torch.device) -> None:
    """Open the process group that a case asks for."""
    case = spec.case
    backend = case.backend if case.communicate else "fake"
    nccl = backend == "nccl"
    supports = _supports(spec)
    if nccl and _exchanges_on_host(case, supports):
        backend = f"cpu:{HOST_BACKEND},{device.type}:{backend}"
    alone = case.world_size == 1  # it needs no communicator
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
    """The backend that carries a device's tensors; empty without a process group."""
    if not dist.is_initialized():
        return ""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return backends.get(device.type, dist.get_backend())


def _supports(spec: LaunchSpec) -> Supports | None:
    """The strategy's own statement of what it supports, before a user's file is imported.

    None where none is used: a script trains by itself, a sweep trains nothing.
    """
    file = spec.files.get("strategies")
    if file is None:
        return None
    if file.endswith(".py"):
        _, head = read_head(Path(file))
        return facts(Supports, head["SUPPORTS"], file)
    return facts(Supports, programs.load_module(file).SUPPORTS, file)


def _in_pairs(case: CaseSpec, supports: Supports | None) -> bool:
    """Whether ranks send to each other in pairs.

    If the world has a communicator from the start, NCCL runs all sends and receives on its stream.
    Otherwise those that torch issues one by one open a communicator for each pair
    (https://github.com/pytorch/pytorch/issues/132900). Batches that mix both, as in the steady
    state of 1F1B, use the world's communicator in either case
    (torch.distributed.pipelining.schedules, ``_batch_p2p``).
    """
    return supports is not None and supports.mesh(case).size(Dim.PP) > 1


def _prioritised() -> Any:
    """NCCL's kernels go before others that wait for the device."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    return options


def _exchanges_on_host(case: CaseSpec, supports: Supports | None) -> bool:
    """Whether tensors of the host are exchanged, too, as those of shards that are kept there."""
    if supports is None or not supports.on_host:
        return False
    return bool(case.knobs.get(f"{case.strategy}.{supports.on_host}"))


class Barrier:
    """A barrier: the process group's, or over the store for a world that does not communicate."""

    def __init__(self, store: dist.Store, rank: int, world_size: int, communicate: bool) -> None:
        self._store = store
        self._rank = rank
        self._others = world_size - 1
        self._communicate = communicate
        self._count = itertools.count()

    def __call__(self) -> None:
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
        """The last meeting: rank 0 hosts the store, so nobody may lose it early."""
        if self._communicate or not self._others:
            self()
        elif self._rank:
            with contextlib.suppress(dist.DistNetworkError):  # rank 0 may be gone before it answers
                self._store.add("parted", 1)
        else:
            while self._store.add("parted", 0) < self._others:
                time.sleep(0.001)
