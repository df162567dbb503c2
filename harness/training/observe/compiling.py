"""When a rank compiled: before its window, one hopes."""

import time
from typing import Any


class Compilations:
    """Notes when torch compiles, backward included; ns by the wall clock."""

    def __init__(self) -> None:
        self.spans_ns: list[tuple[int, int]] = []
        self._began_ns = 0

    def watch(self) -> None:
        """Note compilations from here on."""
        from torch._dynamo.callback import callback_handler  # not loaded where nothing is compiled

        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._began_ns = time.time_ns()

    def _end(self, _: Any) -> None:
        self.spans_ns.append((self._began_ns, time.time_ns()))

    @property
    def total_s(self) -> float:
        return sum(end - begin for begin, end in self.spans_ns) / 1e9

    def within(self, window_ns: tuple[int, int]) -> bool:
        """Whether any of it fell into the window."""
        begin, end = window_ns
        return any(e > begin and b < end for b, e in self.spans_ns)
