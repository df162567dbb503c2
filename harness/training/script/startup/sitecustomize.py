"""Start to watch a new interpreter if it is a rank. Python runs this file at startup.

This file imports neither ``harness`` nor torch before the script imports torch. Launchers,
DataLoader workers and processes that a rank starts are not ranks, so they are not watched. None of
them may write outside the launch's folders.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

#: Names of environment variables. The first holds the launch's folder with the badge files of all
#: ranks, the second the folder that contains the package ``harness``.
BADGES = "SCALEPROOF_BADGES"
HOME = "SCALEPROOF_HOME"
#: The module name of the write guard. The guard is installed here under the name under which
#: ``harness`` imports it later.
GUARD = "harness.training.script.startup.write_guard"


class _Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that finds torch as usual, and calls ``harness`` after torch was imported.

    The hook stays until the import, because libraries may search for torch without importing it.
    """

    def __init__(self, badge: Path, *, known: bool = True) -> None:
        self._badge = badge
        self._known = known
        self._looking = False
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._looking:
            return None
        self._looking = True
        spec = importlib.util.find_spec("torch")
        self._looking = False
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None and module.__spec__ is not None
        sys.meta_path.remove(self)
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self.watch()

    def watch(self) -> None:
        """Start to watch this process. Torch must have been imported."""
        if (home := os.environ.get(HOME, "")) not in sys.path:
            sys.path.append(home)  # at the end, so that it hides none of the script's modules
        from harness.training.script import fresh

        if self._known:
            os.environ.pop(HOME, None)
            fresh.watch(self._badge)
        else:
            fresh.watch_once_grouped(self._badge)


def _theirs() -> None:
    """Run the user's ``sitecustomize``, which this file hides, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if p != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _is_it(command: Mapping[str, Any]) -> bool:
    """Return whether this process runs the script itself and not its launcher."""
    words = [word for word in sys.orig_argv[1:] if word == "-m" or not word.startswith("-")]
    runs = words[1:2] if command["module"] and words[:1] == ["-m"] else words[:1]
    target = command["target"]
    return runs == [target] or bool(runs and Path(runs[0]).name == Path(target).name)


def _fill() -> None:
    """Replace placeholders such as ``{env:API_KEY}`` by the values of their variables.

    The command line of a process can be read by every user of the machine, so the values are
    inserted here.
    """
    sys.argv[1:] = [
        re.sub(r"\{env:(\w+)\}", lambda match: os.environ.get(match[1], match[0]), word)
        for word in sys.argv[1:]
    ]


def _spawns(command: Mapping[str, Any]) -> bool:
    """Return whether the script starts its ranks itself.

    In this case the command names an interpreter right before the script.
    """
    words = [Path(word).name for word in command["launcher"]]
    target = Path(command["target"]).name
    return target in words[1:] and words[words.index(target, 1) - 1].startswith("python")


def _guard() -> None:
    """Install the guard that stops writes outside the folders of this process's launch."""
    if (folders := os.environ.get("SCALEPROOF_WRITABLE")) is None:
        return
    file = Path(__file__).with_name("write_guard.py")
    spec = importlib.util.spec_from_file_location(GUARD, file)
    assert spec is not None and spec.loader is not None
    sys.modules[GUARD] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(folders.split(os.pathsep))


def _begin() -> None:
    folder = os.environ.get(BADGES)
    badges = [] if folder is None else [*Path(folder).glob("badge*.json")]
    if folder is None or not badges:
        return
    command = json.loads(badges[0].read_text(encoding="utf-8"))["command"]
    if _is_it(command):
        _fill()
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    worker = any(word.startswith("from multiprocessing") for word in sys.orig_argv)
    if rank is None and len(badges) == 1 and _is_it(command) and not _spawns(command):
        rank = "0"  # a world of one rank, whose launcher may set no RANK
    # The process may be a rank that the script spawned, a rank without RANK, or no rank at all.
    if rank is None:
        _await(_Torch(Path(folder), known=False))
        return
    badge = Path(folder) / f"badge{rank}.json"
    if worker or not badge.is_file():
        return
    os.environ.pop(BADGES)  # processes that this rank starts must not become ranks
    _await(_Torch(badge))


def _await(torch: _Torch) -> None:
    """Watch this process when torch is imported, or now if it is imported already.

    A file of site-packages may import torch at startup.
    """
    if "torch" in sys.modules:
        torch.watch()
    else:
        sys.meta_path.insert(0, torch)


if __name__ == "sitecustomize":
    _guard()
    _begin()
    _theirs()
