"""What a compressor takes of each step on the host: encoding, adding, decoding."""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from harness.training.observe.spans import span

#: Seconds by part, step by step; ranks of a world are processes of their own.
_STEPS: list[dict[str, float]] = []


def begin() -> None:
    """A step begins."""
    _STEPS.append({})


@contextmanager
def lap(name: str) -> Iterator[None]:
    """One part of a step: a span, and its time."""
    began = time.perf_counter()
    with span(name):
        yield
    if _STEPS:
        _STEPS[-1][name] = _STEPS[-1].get(name, 0.0) + time.perf_counter() - began


def medians() -> Mapping[str, float] | None:
    """Seconds of each part in the median step; None where nothing was timed."""
    names = {name for step in _STEPS for name in step}
    found = {n: statistics.median(s.get(n, 0.0) for s in _STEPS) for n in sorted(names)}
    return found or None
