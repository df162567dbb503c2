"""The inputs of a run: cases, plans, recipes, thresholds and metrics, without torch.

    case        CaseSpec: what is run, its id and hash, and its mesh of ranks
    plan        arms, contrasts and the protocol of a plan
    recipes     functions from a site to plans; ladders has further ones
    site        the hardware that a run may use
    rules       thresholds, and the detection of thresholds that can decide nothing
    metrics     every metric: its form, unit and source
    catalogue   names of strategies, models, compressors, inputs, engines and suites
    heads       literal heads of files, and what features add
    targets     the cases, recipes and files that a command line can name
    script      a user's script as a plan; typed parses launchers and interpreters
    settings    the settings of a run, which do not identify its cases

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
