"""Series of values that belong to no plan: which rules match them, and which questions they are
judged on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.judging.question import Severity
from harness.analysis.judging.series import Series
from harness.analysis.judging.verdicts import conclude
from harness.cases import Device
from harness.cases.rules import BoundSource, Threshold
from harness.host.admission import Finding, Level
from harness.record import SCHEMA, WORSENED_SINCE, Reason, RunRecord, Status

MADE = Series(
    name="fabric/all_reduce@2x4",
    family="fabric/all_reduce",
    world_size=8,
    num_nodes=2,
    first={"bus_bandwidth": (1e9, 1.1e9), "collective_latency": ()},
    again={"bus_bandwidth": (), "collective_latency": ()},
)
RULE = Threshold(
    name="r",
    case="fabric/*",
    metric="bus_bandwidth",
    unit="B/s",
    source=BoundSource.REQUIREMENT,
    at_least=1e6,
)


@pytest.mark.parametrize(
    ("fields", "matches"),
    [
        ({}, True),
        ({"case": "fabric/broadcast"}, False),
        ({"case": "fabric/all_reduce@2x4"}, True),
        ({"case": "fabric/all_reduce@1x8"}, False),
        ({"metric": "recovery_s"}, False),
        ({"device": Device.CPU}, True),
        ({"device": Device.CUDA}, False),
        ({"world": (8,)}, True),
        ({"world": (4, 16)}, False),
        ({"nodes": (2,)}, True),
        ({"nodes": (1,)}, False),
        ({"hardware": "another*"}, False),
    ],
)
def test_a_rule_matches_only_the_series_that_it_names(
    fields: dict[str, object], matches: bool, sample_run: RunRecord
) -> None:
    rule = replace(RULE, **fields)  # type: ignore[arg-type]
    assert MADE.matched_by(rule, sample_run) is matches
    asked = list(MADE.questions(replace(sample_run, thresholds=(rule,))))
    assert [question.metric for question, _ in asked] == (["bus_bandwidth"] if matches else [])


def test_a_wrong_result_is_an_error_without_any_rule(sample_run: RunRecord) -> None:
    wrong = replace(MADE, wrong="a rank got a wrong result")
    ((question, rule),) = wrong.questions(replace(sample_run, thresholds=()))
    (caveat,) = question.caveats_of(Severity.BLOCKS)
    assert rule is None
    assert (caveat.status, caveat.reason) == (Status.ERROR, Reason.INCORRECT)


def test_a_refused_operation_is_a_skip_with_its_reason(sample_run: RunRecord) -> None:
    late = replace(RULE, metric="collective_latency")
    refused = replace(MADE, refused="NCCL has no such operation")
    ((question, _),) = refused.questions(replace(sample_run, thresholds=(late,)))
    (caveat,) = question.caveats_of(Severity.BLOCKS)
    assert caveat.status is Status.SKIP
    assert caveat.sentence == "NCCL has no such operation"


TIMES = replace(
    MADE,
    name="ddp/mlp-nano/weak@2cpu kill",
    family="ddp/mlp-nano/weak",
    world_size=2,
    num_nodes=1,
    first={"recovery_s": (0.5, 0.6, 0.55, 0.52), "goodput": (0.9, 0.91, 0.92, 0.9)},
    again={"recovery_s": (0.5, 0.6, 0.55, 0.52), "goodput": (0.9, 0.91, 0.92, 0.9)},
)


@pytest.mark.parametrize(
    ("bounds", "check", "schema", "status"),
    [
        ({"at_most": 30.0}, "load", SCHEMA, Status.PASS),
        ({"at_most": 0.1}, "load", SCHEMA, Status.INCONCLUSIVE),
        ({"at_least": 0.1}, "load", SCHEMA, Status.INCONCLUSIVE),
        ({"at_most": 30.0}, "memory", SCHEMA, Status.INCONCLUSIVE),
        ({"at_most": 30.0}, "load", WORSENED_SINCE - 1, Status.INCONCLUSIVE),
        ({"metric": "goodput", "unit": "1", "at_least": 0.5}, "load", SCHEMA, Status.INCONCLUSIVE),
    ],
)
def test_load_that_can_only_have_made_values_worse_leaves_a_pass(
    bounds: dict[str, object], check: str, schema: int, status: Status, sample_run: RunRecord
) -> None:
    fields = {"case": "*", "metric": "recovery_s", "unit": "s", "at_least": None, **bounds}
    rule = replace(RULE, **fields)  # type: ignore[arg-type]
    bad = Finding(check=check, level=Level.BAD, text="80 % of 2 CPUs", advice="wait")
    run = replace(sample_run, schema=schema, admission=(bad,), thresholds=(rule,))
    ((question, asked),) = TIMES.questions(run)
    assert conclude(question, asked, run).status is status
