"""Ranks of real gloo process groups, forked from the test, for methods with several workers."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

World = Callable[[int, Callable[[int], Any]], list[Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """``world(ranks, work)`` -> the return values of ``work(rank)`` on all ranks."""
    fork = multiprocessing.get_context("fork")

    def run(ranks: int, work: Callable[[int], Any]) -> list[Any]:
        pipes = [fork.Pipe(duplex=False) for _ in range(ranks)]
        store = str(tmp_path_factory.mktemp("world") / "store")

        def one(rank: int) -> None:
            torch.set_num_threads(1)
            try:
                dist.init_process_group(
                    "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks
                )
                pipes[rank][1].send(work(rank))
                dist.destroy_process_group()
            except BaseException:
                pipes[rank][1].send(traceback.format_exc())
                raise

        processes = [fork.Process(target=one, args=(rank,)) for rank in range(ranks)]
        for process in processes:
            process.start()
        answers = [receive.recv() for receive, _ in pipes]
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), answers
        return answers

    return run
