"""Count the FLOPs of a step: matrix products, convolutions and attention, forward and backward."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.training.work import flops_of


class Counted(TorchDispatchMode):
    """A dispatch mode that adds up the FLOPs of all operators called from ``begin`` to ``end``.

    ``flops`` counts the training. ``aside`` counts operators without gradients, as in an
    evaluation. Two callbacks report what is running: ``trains`` returns whether a forward or
    backward pass of the training runs, and ``updates`` whether an optimizer step runs. FLOPs of an
    optimizer (Shampoo, Muon) are not counted, because they depend on parameters instead of samples,
    and ranks may divide them among themselves.
    """

    def __init__(self, trains: Callable[[], bool], updates: Callable[[], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trains = trains
        self._updates = updates
        self.flops = self.aside = 0.0
        self._counts = False

    def begin(self) -> None:
        self._counts = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Stop counting. A second call does nothing, so that it hides no earlier error."""
        if self._counts:
            self._counts = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        flops = flops_of(func, args, kwargs or {}, result)
        if not flops:
            return result
        if self._trains():
            self.flops += flops
        elif self._updates():
            pass
        elif torch.is_grad_enabled():
            self.flops += flops
        else:
            self.aside += flops
        return result


def compiled() -> bool:
    """Return whether torch has compiled anything in this process."""
    # This function does not import the module, because that takes a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0
