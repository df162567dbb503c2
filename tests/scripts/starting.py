"""A launcher that spawns as many ranks as its argument says, and none for one rank."""

from __future__ import annotations

from collections.abc import Callable

import torch.multiprocessing as mp


def start(train: Callable[[int, int], None], ranks: int) -> None:
    if ranks > 1:
        mp.spawn(train, args=(ranks,), nprocs=ranks)
    else:
        train(0, 1)
