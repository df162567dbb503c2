"""Named ranges of time (spans) that appear in every tool that records ranges.

A span is an NVTX range in the domain ``scaleproof``, which Nsight Systems shows. While a profiler
runs, the span is also a range in the profiler's trace and a row in this module's log. If nothing
records it, it costs about a microsecond.
"""

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import nvtx
import torch
from torch.autograd.profiler import record_function

from harness.record import Category, SpanRow
from harness.record.spans import DOMAIN, label

_COLORS = {
    Category.STEP: "green",
    Category.COMPUTE: "blue",
    Category.COMMUNICATION: "red",
    Category.DATA: "orange",
    Category.WAIT: "yellow",
    Category.OPTIMIZER: "purple",
    Category.CHECKPOINT: "cyan",
    Category.GATE: "yellow",
}
_domain = nvtx.get_domain(DOMAIN)
#: Whether a tool reads NVTX ranges. Such a tool is present from the start of the process.
_is_heard = _domain.get_event_attributes(message="") is not None


class Span:
    """A context manager for a range. It can be entered repeatedly, and inside itself."""

    def __init__(self, name: str, category: Category) -> None:
        self.name = name
        self.category = category
        self.label = label(name, category)
        self.attributes = _domain.get_event_attributes(
            message=name, color=_COLORS[category], category=str(category), payload=0
        )
        self.payload = 0
        self._open: list[tuple[AbstractContextManager[Any], int, int]] = []

    def __enter__(self) -> None:
        if self.attributes is not None:  # None if no tool reads NVTX ranges
            self.attributes.payload = self.payload
            _domain.push_range(self.attributes)
        if _log.range is not None:
            traced = _log.range(self.label, self.payload)
            traced.__enter__()
            self._open.append((traced, self.payload, time.time_ns()))

    def __exit__(self, *error: object) -> None:
        if self._open:
            traced, payload, began = self._open.pop()
            _log.rows.append(
                SpanRow(
                    name=self.name,
                    category=self.category,
                    payload=payload,
                    start_ns=began,
                    end_ns=time.time_ns(),
                )
            )
            traced.__exit__(None, None, None)
        if self.attributes is not None:
            _domain.pop_range()


class _Log:
    """The spans that this process has recorded while a profiler runs.

    ``range`` is a function that makes a range of the profiler. It is None if no profiler runs.
    """

    def __init__(self) -> None:
        self.range: Callable[[str, int], AbstractContextManager[Any]] | None = None
        self.rows: list[SpanRow] = []


class Tracing:
    """The state of tracing. ``on`` is True if a profiler or a reader of NVTX ranges is active."""

    on = _is_heard


_log = _Log()
tracing = Tracing()


@functools.cache
def _made(name: str, category: Category) -> Span:
    """Return the only span with this name and category."""
    return Span(name, category)


def span(name: str, category: Category = Category.STEP, payload: int = 0) -> Span:
    """Return a range called ``name``. ``payload`` is the number of the step or micro-batch.

    There is only one range for each name and category, and it is never freed. Use few names, and
    put counters into the payload.
    """
    new_span = _made(name, category)
    new_span.payload = payload
    return new_span


def profile(on: bool) -> None:
    """Switch on or off that spans are recorded in the log, and as operators in a trace."""
    _look(_as_operator if on else None)


def outline(on: bool) -> None:
    """Switch on or off that spans are recorded in the log, and as user annotations in a trace.

    This is for a profiler that does not record operators.
    """
    _look(_as_users if on else None)


def _look(traced: Callable[[str, int], AbstractContextManager[Any]] | None) -> None:
    """Record spans as ranges that ``traced`` makes, or stop recording if it is None."""
    _log.range = traced
    tracing.on = _is_heard or traced is not None


def _as_operator(label: str, payload: int) -> AbstractContextManager[Any]:
    """Return a range that the profiler records like an operator."""
    return cast(
        AbstractContextManager[Any], torch._C._profiler._RecordFunctionFast(label, [payload])
    )


def _as_users(label: str, _: int) -> AbstractContextManager[Any]:
    """Return a range that the profiler records as a user annotation."""
    return record_function(label)


def forget() -> None:
    """Clear the log of spans."""
    _log.rows.clear()


def logged() -> Iterable[SpanRow]:
    """Return the rows of the log of spans, in the order in which the spans ended."""
    return tuple(_log.rows)
