"""What a strategy is given, and the two things it returns: expectations and a Trainer."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn

from harness.base.documents import Json
from harness.record import WhatRan
from harness.spec import Batching, CaseSpec, Optimizer, Precision
from harness.spec.catalogue import read_head
from harness.training.data import Batch


class Trainer(Protocol):
    """A built strategy. The worker owns everything around ``step``."""

    def step(self, batch: Batch) -> Tensor | None:
        """One whole optimizer step; the loss, or None on a rank that does not compute it."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded gradients of the last step, by the plain model's parameter names."""

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded parameters that this rank trains, by the plain model's names."""

    def ran(self) -> WhatRan:
        """Classes, placements and schedule, observed."""


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """One rank's place in the world and the functions it trains with."""

    case: CaseSpec
    rank: int
    world_size: int
    device: torch.device
    batching: Batching
    loss: Callable[[Tensor, Tensor], Tensor]
    compressor: ModuleType | None

    @property
    def shard(self) -> int:
        """Which part of every batch is this rank's."""
        return self.rank % self.batching.shards

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this rank; ``device`` is the first of them."""
        if self.device.index is None:
            return (self.device,)
        more = range(self.device.index, self.device.index + self.case.devices_per_rank)
        return tuple(torch.device(self.device.type, i) for i in more)

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 autocast when the case asks for it."""
        if self.case.precision is Precision.AUTOCAST:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """The case's optimizer."""
        if self.case.optimizer is Optimizer.SGD:
            return torch.optim.SGD(parameters, lr=0.05)
        return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The modules that a case names, and its size's figures."""

    strategy: ModuleType
    model: ModuleType
    compressor: ModuleType | None

    def size(self, case: CaseSpec) -> Mapping[str, Json]:
        """The figures of the case's size."""
        return self.model.SIZES[case.size]  # type: ignore[no-any-return]


def load(files: Mapping[str, str]) -> Loaded:
    """Import the files of a case: the package's by module name, a user's by path."""
    found = {kind: _module(name) for kind, name in files.items()}
    return Loaded(
        strategy=found["strategies"], model=found["models"], compressor=found.get("compressors")
    )


def _module(file: str) -> ModuleType:
    path = Path(file)
    if path.suffix != ".py":
        return importlib.import_module(file)
    name = f"scaleproof_user_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(path.parent))  # a user's file may import its neighbours
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, f"{path}: {read_head(path)}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build_model(loaded: Loaded, case: CaseSpec, seed: int) -> nn.Sequential:
    """The plain model with its initial weights, on the current default device."""
    torch.manual_seed(seed)
    model = loaded.model.build(loaded.size(case), case)
    if case.precision is Precision.BF16:
        model = model.to(torch.bfloat16)
    if case.checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for name, child in list(model.named_children()):
            setattr(model, name, checkpoint_wrapper(child))
    return model  # type: ignore[no-any-return]


def make_batch(loaded: Loaded, case: CaseSpec, ids: Tensor, device: torch.device) -> Batch:
    """The content of these sample ids, on the device, inputs in the model's dtype."""
    inputs, targets = loaded.model.batch(ids, loaded.size(case), case)
    if case.precision is Precision.BF16 and inputs.is_floating_point():
        inputs = inputs.to(torch.bfloat16)
    return Batch(ids=ids, inputs=inputs.to(device), targets=targets.to(device))
