"""Where all ranks of a world meet, outside of what is timed."""

import contextlib
import itertools
import time

import torch.distributed as dist


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
