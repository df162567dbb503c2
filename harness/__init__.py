"""scaleproof: measure whether distributed PyTorch training scales, and explain the result.

Suites and users' files import these names. The modules that define them may change. A name is
imported at first use, so only the names in ``training`` import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers need static imports of the names below
    from harness.cases import (
        Arm,
        Batching,
        CaseSpec,
        Contrast,
        Fault,
        FaultScenario,
        Mode,
        Plan,
        Precision,
        Protocol,
        Site,
        Threshold,
    )
    from harness.cases.fault_scenario import resharded
    from harness.cases.recipes import (
        ON_GPUS,
        PACED,
        REAL,
        Recipe,
        beside,
        compared,
        control,
        ladder,
        learning,
        like,
        plain,
        shapes,
        strong_worlds,
        versus,
    )
    from harness.cases.script import script
    from harness.cases.site import rungs
    from harness.cases.suites import recovering, scaling
    from harness.interface import frames, notebook
    from harness.launch.dialers import InheritingJob, agent_command
    from harness.launch.engine import Capabilities, Command, Deployment, Job
    from harness.record import Category, ExecutedModel, Expected, ModelFacts, Verdict
    from harness.training.callbacks.accelerate import accelerate_recording
    from harness.training.callbacks.lightning import lightning_callback
    from harness.training.callbacks.transformers import transformers_callback
    from harness.training.context import Knobs, RankContext, Trainer
    from harness.training.data import Batch, images, labels, uniform
    from harness.training.feeds import Feed, Source
    from harness.training.observe.logged import log_metric
    from harness.training.observe.spans import span
    from harness.training.script.measured import measured
    from harness.training.script.recording import measure_steps
    from harness.training.strategies import ddp, fsdp, pipeline
    from harness.training.trainer import LocalTrainer
    from harness.training.transports import (
        Codec,
        ErrorFeedback,
        Promise,
        all_gather,
        done,
        gathered,
        two_phase,
    )

_NAMES = {
    "interface": "frames notebook",
    "launch.dialers": "InheritingJob agent_command",
    "launch.engine": "Capabilities Command Deployment Job",
    "record": "Category ExecutedModel Expected ModelFacts Verdict",
    "cases": (
        "Arm Batching CaseSpec Contrast Fault FaultScenario Mode Plan Precision Protocol Site"
        " Threshold"
    ),
    "cases.fault_scenario": "resharded",
    "cases.recipes": (
        "ON_GPUS PACED REAL Recipe beside compared control ladder learning like plain"
        " shapes strong_worlds versus"
    ),
    "cases.script": "script",
    "cases.site": "rungs",
    "cases.suites": "recovering scaling",
    "training.callbacks.accelerate": "accelerate_recording",
    "training.callbacks.lightning": "lightning_callback",
    "training.callbacks.transformers": "transformers_callback",
    "training.context": "Knobs RankContext Trainer",
    "training.data": "Batch images labels uniform",
    "training.feeds": "Feed Source",
    "training.observe.logged": "log_metric",
    "training.observe.spans": "span",
    "training.script.measured": "measured",
    "training.script.recording": "measure_steps",
    "training.strategies": "ddp fsdp pipeline",
    "training.trainer": "LocalTrainer",
    "training.transports": ("Codec ErrorFeedback Promise all_gather done gathered two_phase"),
}
_PLACE = {name: f"harness.{place}" for place, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_PLACE)


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use. Raise AttributeError for an unknown
    name.
    """
    if name not in _PLACE:
        raise AttributeError(f"module 'harness' has no name {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(_PLACE[name])
    if hasattr(module, name):
        return getattr(module, name)
    # the name is a module, such as ``frames``
    return importlib.import_module(f"{_PLACE[name]}.{name}")
