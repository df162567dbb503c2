"""Time that a compressor takes of each step: encoding, adding, decoding.

On a CPU by the host's clock. A device only queues the work: there events in its own queue say when.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch

from harness.training.observe.spans import span


class EventTimer(NamedTuple):
    """One part of a step, between two events of a device."""

    step: int
    name: str
    first: torch.Event
    last: torch.Event


#: Seconds by part, step by step; ranks of a world are processes of their own.
_STEPS: list[dict[str, float]] = []
_MARKED: list[EventTimer] = []
_DEVICES: list[torch.device] = []


def begin(device: torch.device) -> None:
    """A step begins, with gradients on this device."""
    _STEPS.append({})
    _DEVICES[:] = [] if device.type == "cpu" else [device]


def event(device: torch.device) -> torch.Event:
    """A mark in the device's queue."""
    return torch.Event(device=device, enable_timing=True)


@contextmanager
def lap(name: str) -> Iterator[None]:
    """One part of a step: a span, and its time."""
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
    """Seconds of each part in the median step; None where nothing was timed."""
    if _MARKED:
        _MARKED[-1].last.synchronize()
    for marked in _MARKED:
        _add(marked.step, marked.name, marked.first.elapsed_time(marked.last) / 1e3)
    _MARKED.clear()
    names = {name for step in _STEPS for name in step}
    seconds = {n: statistics.median(s.get(n, 0.0) for s in _STEPS) for n in sorted(names)}
    return seconds or None


def _add(step: int, name: str, seconds: float) -> None:
    _STEPS[step][name] = _STEPS[step].get(name, 0.0) + seconds
