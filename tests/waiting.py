"""Functions that wait for other processes without using their cores, or interrupt them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(seen: Callable[[], T], limit_s: float = 60.0) -> T:
    """Call ``seen`` every 10 ms until it is true or time is over; return its last result."""
    deadline = time.monotonic() + limit_s
    while not (value := seen()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def entered(folder: Path, purpose: str) -> list[Path]:
    """Return the chains of runs below a folder that have a launch of this purpose."""
    chains = folder.glob("results/runs/*/*/chain.jsonl")
    return [c for c in chains if f'"purpose":"{purpose}"' in c.read_text()]


def interruptible() -> None:
    """Reset SIGINT, which a shell's background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
