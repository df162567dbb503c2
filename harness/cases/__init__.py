"""The inputs of a run: cases, plans, recipes, thresholds, metrics, the catalogue and targets.

Import the types from this package, and the functions from their modules.
"""

from harness.cases.batching import Batching, apportion, batching
from harness.cases.case import (
    DATA,
    Ablation,
    Attention,
    CaseSpec,
    Compiled,
    Data,
    Device,
    Dim,
    LearningRate,
    Mesh,
    Mode,
    Optimizer,
    Passes,
    Precision,
    StandIn,
    Stepping,
    digest,
)
from harness.cases.catalogue import Catalogue, Entry, EntryKind
from harness.cases.fault_scenario import Fault, FaultScenario
from harness.cases.heads import EngineFacts, Supports
from harness.cases.metrics import Form, Metric
from harness.cases.plan import BASELINES, PROFILED, Arm, Contrast, Plan, Protocol, Role, Window
from harness.cases.rules import BoundSource, Reach, Statistic, Threshold, Waiver
from harness.cases.settings import Settings
from harness.cases.site import Site
