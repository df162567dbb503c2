"""The record of a run: what was measured, its parts, its files and its schema.

    record      RunRecord, which every command reads
    launch      LaunchRecord, one start of one world of rank processes
    rank        RankRecord, the part of a launch that one rank measured
    described   the facts and expectations of a case, stated before it runs
    outcome     statuses, reasons and verdicts
    budget      the time of a step, divided into terms that add up to it
    chain       the append-only, hash-linked log that is written during a run
    store       reads and writes records on disk; upgrade converts older schemas
    archive     archives of runs; signature signs runs; redaction removes names

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
    UNCHECKED,
    Allocator,
    Ceiling,
    Check,
    CollectiveCount,
    ExecutedModel,
    LateSteps,
    RankRecord,
    Routed,
    ScriptObservations,
    SpanRow,
    headers,
)
from harness.record.record import (
    ASIDE_SINCE,
    CORRELATED_SINCE,
    DIRECTED_SINCE,
    HALVES_SINCE,
    JUDGED_SINCE,
    SCHEMA,
    SETTLED_SINCE,
    WORSENED_SINCE,
    Block,
    RunRecord,
)
from harness.record.recovery import Continued, RankRestart, Trial, Update
from harness.record.spans import Category
