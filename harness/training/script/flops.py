"""How much a step computes: its products, convolutions and attention, there and back, in FLOPs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.training.work import flops_of


class Counted(TorchDispatchMode):
    """Adds up ``flops`` from ``begin`` to ``end``, whatever is called in between.

    ``aside`` are those that no gradient follows from, as of an evaluation. ``trains`` says whether
    a model that trains is called, or goes back; ``updates`` whether an optimizer steps: what it
    computes itself (Shampoo, Muon) is for parameters, not for samples, and ranks may share it.
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
        """Also where it has ended: whatever broke then is what has to be said."""
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
    """Whether torch has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # loading it takes a second
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0
