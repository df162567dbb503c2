"""What is asked: case, plan, recipes, rules, metrics, catalogue, targets.

Its nouns are imported from here, its functions from their files.
"""

from harness.spec.batching import Batching, apportion, batching
from harness.spec.case import (
    Ablation,
    Attention,
    CaseSpec,
    Compiled,
    Data,
    Device,
    LearningRate,
    Mode,
    Optimizer,
    Passes,
    Precision,
    StandIn,
    Stepping,
    digest,
)
from harness.spec.catalogue import Catalogue, Entry, Kind
from harness.spec.courses import Course, Fault
from harness.spec.heads import EngineFacts, Supports
from harness.spec.mesh import DATA, Dim, Mesh
from harness.spec.metrics import Form, Metric
from harness.spec.plan import BASELINES, PROFILED, Arm, Contrast, Plan, Protocol, Role, Window
from harness.spec.rules import Reach, Source, Statistic, Threshold, Waiver
from harness.spec.settings import Settings
from harness.spec.site import Site
