"""The engine protocol: one launch at a time, until no process of its world is left."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.discover import Entry
from harness.protocol import LaunchSpec, RankEnd

#: Called a few times a second while a launch runs: draws the live line, polls the devices.
Tick = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a launch ended, one entry per rank that was asked for."""

    ranks: tuple[RankEnd, ...]
    agent: str


class Engine(Protocol):
    """Starts worlds. ``launch`` blocks until no process of the world is left."""

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start one world of fresh processes and wait for its end."""

    def close(self) -> None:
        """Leave nothing behind."""


def make(entry: Entry) -> Engine:
    """The engine of a discovered file (its ``build()``)."""
    module = importlib.import_module(f"harness.launch.{entry.name}")
    engine: Engine = module.build()
    return engine


#: Environment of every process that imports torch for us, and why.
RANK_ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # a forking agent may have one thread only
    "RES_OPTIONS": "timeout:1 attempts:1",  # TCPStore asks DNS; a lost reply costs 5 s
    "KINETO_LOG_LEVEL": "5",  # kineto writes to stderr when a profiler starts
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # is_available() without a CUDA context
}
