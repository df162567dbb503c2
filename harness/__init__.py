"""scaleproof: prove or disprove that distributed PyTorch training scales, and say why.

These are the names that suites and users' own files import; the folders behind them may change.
A name is looked up when it is asked for, so that only the names of ``training`` import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.interface import frames as frames
    from harness.record import Expected as Expected, ModelFacts as ModelFacts, WhatRan as WhatRan
    from harness.record.spans import Category as Category
    from harness.spec import (
        Batching as Batching,
        CaseSpec as CaseSpec,
        Mode as Mode,
        Plan as Plan,
        Protocol as Protocol,
    )
    from harness.spec.courses import Course as Course, Fault as Fault, resharded as resharded
    from harness.spec.recipes import (
        PACED as PACED,
        Recipe as Recipe,
        control as control,
        ladder as ladder,
        like as like,
        plain as plain,
        shapes as shapes,
        strong_worlds as strong_worlds,
        versus as versus,
    )
    from harness.spec.site import Site as Site, rungs as rungs
    from harness.spec.suite import recovering as recovering, scaling as scaling
    from harness.training.context import RankContext as RankContext, Trainer as Trainer
    from harness.training.data import (
        Batch as Batch,
        images as images,
        labels as labels,
        uniform as uniform,
    )
    from harness.training.observe.spans import span as span
    from harness.training.strategies import ddp as ddp, fsdp as fsdp, pipeline as pipeline
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
