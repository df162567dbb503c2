"""Observe the seed, the loaders and the optimizers that a process makes before it trains."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from harness.training.script.loaders import Loaders


class Preparation:
    """The loaders, optimizers and seed that are observed from ``install`` until ``remove``.

    A process can be observed before it is known whether it is a rank.
    """

    def __init__(self) -> None:
        self.loaders = Loaders()
        self.optimizers: dict[int, Optimizer] = {}
        self.seed = ""  # the last seed set before a model was made
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Install the hooks unless they are installed already."""
        if not self._undo:
            self.loaders.install()
            self._wrap_seeds()
            self._wrap_optimizers()

    def remove(self) -> None:
        self.loaders.remove()
        while self._undo:
            self._undo.pop()()

    def _wrap_seeds(self) -> None:
        """Record the last seed that the script sets before it makes a model.

        The seed says whether the initial weights are the same in every launch. A seed set after the
        model was made belongs to the data (torchvision's FakeData sets one for each sample).
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
        """Record every optimizer that is made.

        A step of the training has ended only after every optimizer has stepped.
        """
        make: Callable[..., Any] = Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Optimizer, *args: Any, **more: Any) -> None:
            make(optimizer, *args, **more)
            # keep a reference, so that the id is not reused
            self.optimizers[id(optimizer)] = optimizer

        self._undo.append(put(Optimizer, "__init__", made))


def put(place: Any, name: str, ours: object) -> Callable[[], None]:
    """Replace an attribute, and return a function that restores the previous one.

    That function deletes the attribute if the class had only inherited it.
    """
    inherited = isinstance(place, type) and name not in vars(place)
    before = getattr(place, name)
    setattr(place, name, ours)

    def restore() -> None:
        if vars(place).get(name) is not ours:  # other code has replaced the attribute since then
            return
        if inherited:
            delattr(place, name)
        else:
            setattr(place, name, before)

    return restore
