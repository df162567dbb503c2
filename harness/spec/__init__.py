"""What is asked: case, plan, recipes, rules, metrics, catalogue, targets."""

from harness.spec.batching import Batching, apportion, batching
from harness.spec.case import (
    Ablation,
    CaseSpec,
    Data,
    Device,
    Mode,
    Optimizer,
    Precision,
    StandIn,
    digest,
)
from harness.spec.plan import BASELINES, PROFILED, Arm, Contrast, Plan, Protocol, Role, Window

__all__ = [
    "BASELINES",
    "PROFILED",
    "Ablation",
    "Arm",
    "Batching",
    "CaseSpec",
    "Contrast",
    "Data",
    "Device",
    "Mode",
    "Optimizer",
    "Plan",
    "Precision",
    "Protocol",
    "Role",
    "StandIn",
    "Window",
    "apportion",
    "batching",
    "digest",
]
