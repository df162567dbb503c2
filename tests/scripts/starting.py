"""Starts as many ranks as it is told, and none where one is enough."""

from __future__ import annotations

from collections.abc import Callable

import torch.multiprocessing as mp


def start(train: Callable[[int, int], None], ranks: int) -> None:
    if ranks > 1:
        mp.spawn(train, args=(ranks,), nprocs=ranks)
    else:
        train(0, 1)
