"""What was measured: the record and its parts, on disk and upgraded."""

from harness.record.described import Described, Expected, ModelFacts
from harness.record.launch import (
    Cause,
    Growth,
    LaunchRecord,
    LaunchStatus,
    Purpose,
    Steadiness,
    Steps,
)
from harness.record.rank import Allocator, Check, Issued, RankRecord, SpanRow, WhatRan
from harness.record.record import JUDGED_SINCE, SCHEMA, RunRecord

__all__ = [
    "JUDGED_SINCE",
    "SCHEMA",
    "Allocator",
    "Cause",
    "Check",
    "Described",
    "Expected",
    "Growth",
    "Issued",
    "LaunchRecord",
    "LaunchStatus",
    "ModelFacts",
    "Purpose",
    "RankRecord",
    "RunRecord",
    "SpanRow",
    "Steadiness",
    "Steps",
    "WhatRan",
]
