"""Where all ranks of a world meet, outside of what is timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch.distributed as dist


def meeting(store: dist.Store, world_size: int, communicate: bool) -> Callable[[], None]:
    """A barrier: the process group's, or over the store for a world that does not communicate."""
    if world_size == 1:
        return lambda: None
    if communicate:

        def barrier() -> None:
            dist.barrier()

        return barrier
    count = itertools.count()

    def meet() -> None:
        key = f"meeting{next(count)}"
        if store.add(key, 1) == world_size:
            store.set(f"{key}/all", "here")
        store.wait([f"{key}/all"])

    return meet
