"""scaleproof: prove or disprove that distributed PyTorch training scales, and say why.

These are the names that suites and users' own files import; the folders behind them may change.
A name is looked up when it is asked for, so that only the names of ``training`` import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.interface import frames as frames
    from harness.record import Expected as Expected
    from harness.record import ModelFacts as ModelFacts
    from harness.record import WhatRan as WhatRan
    from harness.record.spans import Category as Category
    from harness.spec import Batching as Batching
    from harness.spec import CaseSpec as CaseSpec
    from harness.spec import Mode as Mode
    from harness.spec import Plan as Plan
    from harness.spec import Protocol as Protocol
    from harness.spec.courses import Course as Course
    from harness.spec.courses import Fault as Fault
    from harness.spec.courses import resharded as resharded
    from harness.spec.recipes import PACED as PACED
    from harness.spec.recipes import Recipe as Recipe
    from harness.spec.recipes import control as control
    from harness.spec.recipes import ladder as ladder
    from harness.spec.recipes import like as like
    from harness.spec.recipes import plain as plain
    from harness.spec.recipes import shapes as shapes
    from harness.spec.recipes import strong_worlds as strong_worlds
    from harness.spec.recipes import versus as versus
    from harness.spec.site import Site as Site
    from harness.spec.site import rungs as rungs
    from harness.spec.suite import recovering as recovering
    from harness.spec.suite import scaling as scaling
    from harness.training.context import RankContext as RankContext
    from harness.training.context import Trainer as Trainer
    from harness.training.data import Batch as Batch
    from harness.training.data import images as images
    from harness.training.data import labels as labels
    from harness.training.data import uniform as uniform
    from harness.training.observe.spans import span as span
    from harness.training.strategies import ddp as ddp
    from harness.training.strategies import fsdp as fsdp
    from harness.training.strategies import pipeline as pipeline
    from harness.training.trainer import LocalTrainer as LocalTrainer

_ROOMS = {
    "interface.frames": ("frames",),
    "record": ("Expected", "ModelFacts", "WhatRan"),
    "record.spans": ("Category",),
    "spec": ("Batching", "CaseSpec", "Mode", "Plan", "Protocol"),
    "spec.courses": ("Course", "Fault", "resharded"),
    "spec.recipes": (
        "PACED",
        "Recipe",
        "control",
        "ladder",
        "like",
        "plain",
        "shapes",
        "strong_worlds",
        "versus",
    ),
    "spec.site": ("Site", "rungs"),
    "spec.suite": ("recovering", "scaling"),
    "training.context": ("RankContext", "Trainer"),
    "training.data": ("Batch", "images", "labels", "uniform"),
    "training.observe.spans": ("span",),
    "training.strategies.ddp": ("ddp",),
    "training.strategies.fsdp": ("fsdp",),
    "training.strategies.pipeline": ("pipeline",),
    "training.trainer": ("LocalTrainer",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = sorted(_ROOM_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'harness' has no name {name!r}: one of {', '.join(__all__)}")
    module = importlib.import_module(f"harness.{_ROOM_OF[name]}")
    return getattr(module, name, module)  # or the module itself, as with ``frames``
