"""Waiting for other processes without taking their cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(seen: Callable[[], T], limit_s: float = 60.0) -> T:
    """Look every 10 ms until something is seen, or the time is over; what was seen last."""
    deadline = time.monotonic() + limit_s
    while not (found := seen()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
