"""What was measured: the record of a run, its parts, its files and its schema.

    record      RunRecord, which every command reads
    launch      LaunchRecord; rank has the part of one rank, described what was known before
    outcome     statuses, reasons and verdicts
    budget      the time of a step in terms that add up to it
    chain       the append-only, hashed log of a run while it is made
    store       how a record lies on disk; upgrade reads older schemas
    archive     archives of runs; signature signs them; redaction removes names

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
