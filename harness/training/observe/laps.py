"""Measure the time that a compressor takes in each step for encoding, adding and decoding.

On a CPU the host's clock measures this time. A call on a device only queues the work, so events in
the device's queue measure the time there.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch

from harness.training.observe.spans import span


class EventTimer(NamedTuple):
    """The timer of one part of a step: two events in the queue of a device."""

    step: int
    name: str
    first: torch.Event
    last: torch.Event


#: For each step, the seconds of each part. These variables are global, because each rank is a
#: separate process.
_STEPS: list[dict[str, float]] = []
#: Timers whose events have not been read yet.
_MARKED: list[EventTimer] = []
#: The device of the current step's gradients. The list is empty on a CPU.
_DEVICES: list[torch.device] = []


def begin(device: torch.device) -> None:
    """Begin a step whose gradients are on this device."""
    _STEPS.append({})
    _DEVICES[:] = [] if device.type == "cpu" else [device]


def event(device: torch.device) -> torch.Event:
    """Return an event that records its time in the device's queue."""
    return torch.Event(device=device, enable_timing=True)


@contextmanager
def lap(name: str) -> Iterator[None]:
    """Return a context that measures one part of a step, and records it as a span."""
    began = time.perf_counter()
    step = len(_STEPS) - 1
    marks = [(event(device), event(device)) for device in _DEVICES]
    for first, _ in marks:
        first.record()
    with span(name):
        yield
    for first, last in marks:
        last.record()
        _MARKED.append(EventTimer(step, name, first, last))
    if _STEPS and not marks:
        _add(step, name, time.perf_counter() - began)


def medians() -> Mapping[str, float] | None:
    """Return the median over steps of the seconds of each part, or None if nothing was timed."""
    if _MARKED:
        _MARKED[-1].last.synchronize()
    for marked in _MARKED:
        _add(marked.step, marked.name, marked.first.elapsed_time(marked.last) / 1e3)
    _MARKED.clear()
    names = {name for step in _STEPS for name in step}
    seconds = {n: statistics.median(s.get(n, 0.0) for s in _STEPS) for n in sorted(names)}
    return seconds or None


def _add(step: int, name: str, seconds: float) -> None:
    """Add seconds to one part of a step."""
    _STEPS[step][name] = _STEPS[step].get(name, 0.0) + seconds
