"""Whether a model's file asks how large the world is: alone it could be another model.

A baseline that is slowed by its own file where it runs alone flatters every rung of a ladder. So
while a step runs, calls that tell the world's size or a rank are noted with who made them.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

import torch.distributed as dist
from torch._dynamo.callback import callback_handler

from harness.base.programs import PACKAGE
from harness.record import Check
from harness.training.context import Loaded
from harness.training.rank.installed import is_installed

#: Variables that launchers set.
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID")
_TORCH = Path(dist.__file__).parents[1]
_TELLS: frozenset[CodeType] = frozenset(
    function.__code__ for function in (dist.get_world_size, dist.get_rank)
)
ProfileFunction: TypeAlias = Callable[[FrameType, str, object], object]
#: Of a process group.
_METHODS = ("size", "rank")
#: What pybind's methods are bound to, by its version.
_BOUND = ("PyCapsule", "pybind11")
_READS: frozenset[CodeType] = frozenset(
    function.__code__ for function in (os._Environ.__getitem__, os.getenv)
)


@functools.cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


class WorldSizeQueries:
    """Who asked, as ``file.py:line``; ``allowed`` are files that may, ``model`` is none of them."""

    def __init__(self, model: str, allowed: Sequence[str]) -> None:
        self.where: list[str] = []
        self._model = str(Path(model).resolve())
        self._allowed = {str(Path(file).resolve()) for file in allowed}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Calls of this thread are looked at, a compiler's left out: it makes millions."""
        before = sys.getprofile()
        sys.setprofile(self._look)
        thread = threading.get_ident()

        def switch(look: ProfileFunction | None, _: object) -> None:
            if threading.get_ident() == thread:  # autograd compiles in one of its own
                sys.setprofile(look)

        pause = partial(switch, None)
        resume = partial(switch, self._look)
        callback_handler.register_start_callback(pause)
        callback_handler.register_end_callback(resume)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(pause)
            callback_handler.remove_end_callback(resume)
            sys.setprofile(before)

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            bound = type(getattr(called, "__self__", None)).__name__
            if getattr(called, "__name__", "") in _METHODS and bound.startswith(_BOUND):
                self._note(frame)
        elif event == "call":
            read = frame.f_code in _READS and frame.f_locals.get("key") in VARIABLES
            if read or frame.f_code in _TELLS:
                self._note(frame.f_back)

    def _note(self, caller: FrameType | None) -> None:
        """By whom a call was made: the nearest of the case's files decides, else the caller itself.

        A library may ask for itself, and for a strategy that uses it, not for a model.
        """
        asks = ""
        while caller is not None:
            file = caller.f_code.co_filename
            path = _resolved(file)
            place = f"{path.name}:{caller.f_lineno}"
            if str(path) == self._model:
                self.where.append(place)
                return
            backend = isinstance(caller.f_locals.get("self"), dist.ProcessGroup)
            if str(path) in self._allowed or backend:  # one that is written in Python
                return
            if path.is_relative_to(PACKAGE) or path.is_relative_to(_TORCH):
                break
            library = file.startswith("<frozen") or is_installed(str(path.parent))
            asks = asks or ("" if library else place)
            caller = caller.f_back
        if asks:
            self.where.append(asks)

    def check(self) -> Check:
        """The check of what was noted."""
        places = ", ".join(dict.fromkeys(self.where[:3]))
        detail = f"{places} asks for the size of the world, or for a rank" if places else ""
        return Check(name="model.knows_no_world", ok=not self.where, detail=detail)


def inquiries(loaded: Loaded) -> WorldSizeQueries:
    """Who asks for the world's size in a case: its strategy, codec and input may."""
    files = {kind: str(module.__file__) for kind, module in loaded.modules.items()}
    return WorldSizeQueries(
        files["model"], [file for kind, file in files.items() if kind != "model"]
    )
