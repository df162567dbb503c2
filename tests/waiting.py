"""Waiting for other processes without taking their cores, and interrupting them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(seen: Callable[[], T], limit_s: float = 60.0) -> T:
    """Look every 10 ms until something is seen, or the time is over; what was seen last."""
    deadline = time.monotonic() + limit_s
    while not (value := seen()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def entered(folder: Path, purpose: str) -> list[Path]:
    """The chain of a run below this folder, once it has a launch of that kind."""
    chains = folder.glob("results/runs/*/*/chain.jsonl")
    return [c for c in chains if f'"purpose":"{purpose}"' in c.read_text()]


def interruptible() -> None:
    """A shell's background jobs ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
