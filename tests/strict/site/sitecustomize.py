"""On PYTHONPATH this makes every Python of a run believe in the strict device, as torch is imported.

Six answers of the project are changed: what the installed torch was built for, how large the
matrices of a device's ceilings and the payloads of a sweep are (a GPU's would take a core a minute),
which device is a rank's (torch lets a process have one of this kind), that the machine has a core for
each of its GPUs, and which network it is on.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

#: As a program asks where torch is, without importing it: beside that file lies ``version.py``.
find_spec = importlib.util.find_spec
WHEEL = Path(__file__).parent / "wheel" / "__init__.py"
TESTS = str(Path(__file__).resolve().parents[2])


def _torch(_: ModuleType) -> None:
    if TESTS not in sys.path:
        sys.path.append(TESTS)
    from strict import device, group

    device.install()
    group.install()


def _ceiling(module: ModuleType) -> None:
    module.ROWS, module.COPIED = (256, 256), (1 << 20, 1 << 20)  # type: ignore[attr-defined]
    module.LASTS_S = (0.02, 0.02)  # type: ignore[attr-defined]


def _numbered(module: ModuleType) -> None:
    import torch
    from strict import device

    def numbered(index: int) -> torch.device:
        if device.chosen is None:  # a script asks which one is current, and is told the only one
            device.chosen = index
        return torch.device("strict", 0)

    module.numbered = numbered  # type: ignore[attr-defined]


def _cored(module: ModuleType) -> None:
    there = module.physical_cores
    module.physical_cores = lambda: max(there(), int(os.environ["STRICT_GPUS"]))  # type: ignore[attr-defined]


def _payloads(module: ModuleType) -> None:
    module.sizes = lambda device: (8, 1 << 18)  # type: ignore[attr-defined]


def _network(module: ModuleType) -> None:
    """``STRICT_NETWORK=infiniband:800``: the cards that a node shows, and their Gbit/s."""
    there = module._network
    kind, _, rate = os.environ.get("STRICT_NETWORK", "").partition(":")

    def network(sys_: Path) -> object:
        return (module.Network(kind), float(rate)) if kind else there(sys_)

    module._network = network  # type: ignore[attr-defined]


AFTER: dict[str, Callable[[ModuleType], None]] = {
    "torch": _torch,
    "harness.training.accelerator": _numbered,
    "harness.training.rank.ceiling": _ceiling,
    "harness.host.fabric": _network,
    "harness.host.machine": _cored,
    "harness.record.fabric": _payloads,
}


class _Then(importlib.abc.Loader):
    """A module's own loader, and what is done once it is there."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in AFTER:
            return None
        then = AFTER.pop(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, then)
        return spec


def _told(name: str, package: str | None = None) -> object:
    """Who only asks which build this is gets the wheel's; who imports it gets torch itself."""
    asks = sys._getframe(1).f_globals.get("__name__") == "harness.host.accelerators"
    if name == "torch" and asks:
        return SimpleNamespace(origin=str(WHEEL))
    return find_spec(name, package)


# behind who waits for torch already: the device is to be there when a script's watch begins
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), _Finder())
importlib.util.find_spec = _told  # type: ignore[assignment]
