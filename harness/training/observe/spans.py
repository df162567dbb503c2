"""``span``: one named range, seen wherever anyone looks.

It is an NVTX range in the domain ``scaleproof`` (Nsight Systems shows it), a range in the trace
while a profiler runs, and a row in our own log while one is kept. Without any of these it costs
about a microsecond.
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
#: Whether a tool reads NVTX ranges: it is there from the start of a process.
_is_heard = _domain.get_event_attributes(message="") is not None


class Span:
    """A range that can be entered again and again, also within itself."""

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
        if self.attributes is not None:  # None: no tool listens
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
    """The spans of this process that are left behind while a profiler runs."""

    def __init__(self) -> None:
        self.range: Callable[[str, int], AbstractContextManager[Any]] | None = None
        self.rows: list[SpanRow] = []


class Tracing:
    """``on``: whether anyone looks at spans now: a profiler, or a tool that reads NVTX ranges."""

    on = _is_heard


_log = _Log()
tracing = Tracing()


@functools.cache
def _made(name: str, category: Category) -> Span:
    return Span(name, category)


def span(name: str, category: Category = Category.STEP, payload: int = 0) -> Span:
    """A range called ``name``; ``payload`` is the step or the micro-batch.

    Made once for each name, so keep names few and put what counts up into the payload.
    """
    new_span = _made(name, category)
    new_span.payload = payload
    return new_span


def profile(on: bool) -> None:
    """Whether spans are logged, and entered in the profiler's trace, from now on."""
    _look(_as_operator if on else None)


def outline(on: bool) -> None:
    """Marks spans for a profiler without operators: spans are then the user's own ranges."""
    _look(_as_users if on else None)


def _look(traced: Callable[[str, int], AbstractContextManager[Any]] | None) -> None:
    _log.range = traced
    tracing.on = _is_heard or traced is not None


def _as_operator(label: str, payload: int) -> AbstractContextManager[Any]:
    return cast(
        AbstractContextManager[Any], torch._C._profiler._RecordFunctionFast(label, [payload])
    )


def _as_users(label: str, _: int) -> AbstractContextManager[Any]:
    return record_function(label)


def forget() -> None:
    """Forget what was logged."""
    _log.rows.clear()


def logged() -> Iterable[SpanRow]:
    return tuple(_log.rows)
