"""The record of a run, its parts, its files, and the upgrade of older records.

Import the types from this package, and the functions from their modules.
"""

from harness.record.budget import Blame, Budget, Operator, RankBudget, Term
from harness.record.described import (
    Described,
    Expected,
    ModelFacts,
    Product,
    Reference,
    Work,
    bytes_sent,
    exchanges,
)
from harness.record.fabric import Row, Swept
from harness.record.launch import (
    Cause,
    Growth,
    LaunchRecord,
    LaunchStatus,
    Purpose,
    Reached,
    Stalls,
    Steadiness,
    Steps,
)
from harness.record.outcome import Reason, ScalingPoint, Status, Verdict
from harness.record.rank import (
    Allocator,
    Ceiling,
    Check,
    CollectiveCount,
    ExecutedModel,
    RankRecord,
    Routed,
    ScriptObservations,
    SpanRow,
    headers,
)
from harness.record.record import (
    ASIDE_SINCE,
    DIRECTED_SINCE,
    HALVES_SINCE,
    JUDGED_SINCE,
    SCHEMA,
    SETTLED_SINCE,
    Block,
    RunRecord,
)
from harness.record.recovery import Continued, RankRestart, Trial, Update
from harness.record.spans import Category
