"""Record when a rank compiled, to detect compilations within the timed window."""

import time
from typing import Any


class Compilations:
    """A recorder of the times at which torch compiles forward and backward passes.

    ``spans_ns`` lists the beginning and the end of each compilation, in ns of the wall clock.
    """

    def __init__(self) -> None:
        self.spans_ns: list[tuple[int, int]] = []
        self._began_ns = 0

    def watch(self) -> None:
        """Start to record compilations."""
        # This import is here so that a rank that compiles nothing does not load the module.
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def _start(self, _: Any) -> None:
        """Record the beginning of a compilation."""
        self._began_ns = time.time_ns()

    def _end(self, _: Any) -> None:
        """Record the end of a compilation."""
        self.spans_ns.append((self._began_ns, time.time_ns()))

    @property
    def total_s(self) -> float:
        """The total duration of all compilations in s."""
        return sum(end - begin for begin, end in self.spans_ns) / 1e9

    def within(self, window_ns: tuple[int, int]) -> bool:
        """Return whether a compilation overlaps the window."""
        begin, end = window_ns
        return any(e > begin and b < end for b, e in self.spans_ns)
