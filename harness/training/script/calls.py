"""Time what a training calls between its passes: collectives, files that it saves, and garbage.

The times are sums since the hooks were installed. The watch reads them at each step.
"""

import functools
import gc
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.record.anatomy import CalledCollective
from harness.training.script.prepared import put

#: The functions of torch.distributed in which the host may wait for other ranks.
COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "monitored_barrier", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip


class Calls:
    """The calls of one process: their number, and the seconds that the host spends in them.

    ``counts`` and ``seconds`` have one entry for each collective that was called. A collective that
    another one calls belongs to the outer one, and one that an optimizer calls in its step is left
    out (``updates`` returns whether one steps). ``inside`` states that one is running.
    """

    def __init__(self, updates: Callable[[], bool] = lambda: False) -> None:
        self._updates = updates
        self.counts = Counter[str]()
        self.seconds: dict[str, float] = {}
        self.saving_s = self.garbage_s = self.waiting_s = 0.0
        self.inside = False
        # collectives since the last backward pass whose tensors need gradients, and their number
        # that came before a backward pass
        self._open_graph = 0
        self.without_gradient = 0
        self._collecting_s = 0.0

    def install(self) -> list[Callable[[], None]]:
        """Install the hooks, and return functions that remove them."""
        gc.callbacks.append(self._collects)
        undo = [put(dist, name, self._timed(name)) for name in COLLECTIVES if hasattr(dist, name)]
        return [*undo, functools.partial(gc.callbacks.remove, self._collects)]

    def enter_backward(self) -> None:
        """Handle the start of a backward pass from results of earlier collectives."""
        self.without_gradient += self._open_graph
        self._open_graph = 0

    def passing(self) -> None:
        """Handle the start of a step's first pass. Earlier collectives do not belong to it."""
        self._open_graph = 0

    def reset(self) -> None:
        """Forget the calls of collectives so far."""
        self.counts.clear()
        self.seconds.clear()

    def of_a_step(self, steps: int) -> dict[str, CalledCollective]:
        """Return the calls since ``reset`` for each of ``steps`` steps."""
        return {
            name: CalledCollective(count=count / steps, host_s=self.seconds[name] / steps)
            for name, count in sorted(self.counts.items())
        }

    def _timed(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(dist, name)

        @functools.wraps(call)
        def timed(*args: Any, **more: Any) -> Any:
            if self.inside or self._updates():
                return call(*args, **more)
            tensors = [x for x in (*args, *more.values()) if isinstance(x, Tensor)]
            if torch.is_grad_enabled() and any(x.grad_fn is not None for x in tensors):
                self._open_graph += 1
            self.inside = True
            begun_s = perf_counter()
            try:
                return call(*args, **more)
            finally:
                took_s = perf_counter() - begun_s
                self.inside = False
                self.counts[name] += 1
                self.seconds[name] = self.seconds.get(name, 0.0) + took_s
                self.waiting_s += took_s

        return timed

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        """Handle the start or the end of a garbage collection."""
        if phase == "start":
            self._collecting_s = perf_counter()
        else:
            self.garbage_s += perf_counter() - self._collecting_s
