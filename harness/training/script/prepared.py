"""A process before it trains: a seed that it sets, loaders and optimizers that it makes."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from harness.training.script.loaders import Loaders


class Preparation:
    """Seen from ``install`` on, until ``remove``: also before a process is known to be a rank."""

    def __init__(self) -> None:
        self.loaders = Loaders()
        self.optimizers: dict[int, Optimizer] = {}
        self.seed = ""  # the last one before a model was made
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Nothing happens where it is installed already."""
        if not self._undo:
            self.loaders.install()
            self._wrap_seeds()
            self._wrap_optimizers()

    def remove(self) -> None:
        self.loaders.remove()
        while self._undo:
            self._undo.pop()()

    def _wrap_seeds(self) -> None:
        """Whether the script makes its start the same in every launch: a seed that it sets later
        than it makes a model is of its data (as torchvision's FakeData is drawn).
        """
        manual_seed: Callable[[int], torch.Generator] = torch.manual_seed
        made = False

        @functools.wraps(manual_seed)
        def seen(seed: int) -> torch.Generator:
            self.seed = self.seed if made else str(seed)
            return manual_seed(seed)

        def registered(*_: object) -> None:
            nonlocal made
            made = True

        self._undo.append(register_module_parameter_registration_hook(registered).remove)
        self._undo.append(put(torch, "manual_seed", seen))
        self._undo.append(put(torch.random, "manual_seed", seen))

    def _wrap_optimizers(self) -> None:
        """A period is not over before every optimizer that was made has stepped."""
        make: Callable[..., Any] = Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Optimizer, *args: Any, **more: Any) -> None:
            make(optimizer, *args, **more)
            self.optimizers[id(optimizer)] = optimizer  # kept: its id stays its own

        self._undo.append(put(Optimizer, "__init__", made))


def put(place: Any, name: str, ours: object) -> Callable[[], None]:
    """Replaces an attribute; what is returned puts back what was there, inherited or its own."""
    inherited = isinstance(place, type) and name not in vars(place)
    before = getattr(place, name)
    setattr(place, name, ours)

    def restore() -> None:
        if vars(place).get(name) is not ours:  # somebody has wrapped it since
            return
        if inherited:
            delattr(place, name)
        else:
            setattr(place, name, before)

    return restore
