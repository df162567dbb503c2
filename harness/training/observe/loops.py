"""Whose communications a thread of gloo's carries out: each process group has threads of its own.

Ranges of gloo do not name their group, so that nobody could tell those of one from another's.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from harness.record.spans import GROUPS
from harness.training.observe import threads

_served: dict[int, str] = {}


def follow() -> None:
    """Know the threads of new groups from now on, for the rest of this rank."""
    make: Callable[..., Any] = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def seen(size: int, rank: int, ranks: list[int], *args: Any, **more: Any) -> Any:
        before = threads.running()
        operation = make(size, rank, ranks, *args, **more)
        if dist.is_initialized() and 0 < len(ranks) < dist.get_world_size():
            name = ",".join(map(str, ranks))
            twins = len({n for n in _served.values() if n.partition("#")[0] == name})
            for thread in threads.running() - before:
                _served[thread] = f"{name}#{twins}" if twins else name
        return operation

    owner: Any = distributed_c10d
    owner._new_process_group_helper = seen


def tell() -> None:
    """Leave what is known in the trace that is being taken."""
    torch.autograd._add_metadata_json(GROUPS, json.dumps({str(t): n for t, n in _served.items()}))
