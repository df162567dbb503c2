"""Installs the strict device in every Python of a run as soon as it imports torch.

The folder must be on PYTHONPATH. Six values in the harness are replaced: the build of the installed
torch, the matrix sizes for a device's ceilings and the payloads of a sweep (those of a GPU would
take a core a minute), a rank's device (torch allows one of this kind per process), the number of
cores (at least one per GPU), and the network.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

#: The harness locates torch without importing it, and reads ``version.py`` beside that file.
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
        if device.chosen is None:  # a script that asks for the current device gets the only one
            device.chosen = index
        return torch.device("strict", 0)

    module.numbered = numbered  # type: ignore[attr-defined]


def _cored(module: ModuleType) -> None:
    there = module.physical_cores
    module.physical_cores = lambda: max(there(), int(os.environ["STRICT_GPUS"]))  # type: ignore[attr-defined]


def _payloads(module: ModuleType) -> None:
    module.sizes = lambda device: (8, 1 << 18)  # type: ignore[attr-defined]


def _network(module: ModuleType) -> None:
    """Apply ``STRICT_NETWORK=infiniband:800``: kind of the node's network cards, and Gbit/s."""
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
    """A module's own loader, followed by a function of the loaded module."""

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
    """Return the wheel's spec to the build detection, and torch's own to everybody else."""
    asks = sys._getframe(1).f_globals.get("__name__") == "harness.host.accelerators"
    if name == "torch" and asks:
        return SimpleNamespace(origin=str(WHEEL))
    return find_spec(name, package)


# Placed after finders that already wait for torch: a script's observation needs the device.
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), _Finder())
importlib.util.find_spec = _told  # type: ignore[assignment]
