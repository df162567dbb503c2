"""Runs as a Python starts whose PYTHONPATH names this folder: watches it if it is a rank.

Nothing is imported before the script imports torch. Whatever is no rank, a launcher, a worker of a
DataLoader, is left alone, and so is what a rank starts.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

#: Variables: the launch's folder, where every rank's badge lies, and where ``harness`` lies.
BADGES, HOME = "SCALEPROOF_BADGES", "SCALEPROOF_HOME"


class _Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as usual, and calls ``harness`` once it is imported."""

    def __init__(self, badge: Path) -> None:
        self._badge = badge
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None and module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if (home := os.environ.pop(HOME, "")) not in sys.path:
            sys.path.append(home)  # last: it hides nothing of the script's
        from harness.training.script import fresh

        fresh.watch(self._badge)


def _theirs() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if p != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _alone(folder: str) -> str | None:
    """The rank of a world of one, whose launcher may tell it nothing: who runs the script is it."""
    badges = [*Path(folder).glob("badge*.json")]
    if len(badges) != 1:
        return None
    command = json.loads(badges[0].read_text())["command"]
    words = [w for w in sys.orig_argv[1:] if w == "-m" or not w.startswith("-")]
    runs = words[1:2] if command["module"] and words[:1] == ["-m"] else words[:1]
    target = command["target"]
    is_it = runs == [target] or (runs and Path(runs[0]).name == Path(target).name)
    return "0" if is_it else None


def _begin() -> None:
    folder = os.environ.get(BADGES)
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    if folder is not None and rank is None:
        rank = _alone(folder)
    worker = any("multiprocessing" in word for word in sys.orig_argv[1:3])
    if folder is None or rank is None or worker:
        return
    badge = Path(folder) / f"badge{rank}.json"
    if badge.is_file():
        os.environ.pop(BADGES)  # what this rank starts is none
        sys.meta_path.insert(0, _Torch(badge))


if __name__ == "sitecustomize":
    _theirs()
    _begin()
