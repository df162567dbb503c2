"""Sweeps of the fabric: bandwidths of rows, wrong results, and the verdicts of rules on them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.judging.notices import PAYLOAD_SHARE, sentences, shaped
from harness.analysis.judging.series import series
from harness.analysis.judging.verdicts import verdicts
from harness.cases import BoundSource, Catalogue, Device, Settings, Threshold, Waiver
from harness.cases.rules import load_thresholds, reach
from harness.host.admission import Finding, Level
from harness.host.fabric import LinkClass, MachineFabric, Network
from harness.host.machine import detect
from harness.interface.report.fabric import lines
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Reason, Row, RunRecord, Status
from harness.record.fabric import factor, shapes, swept
from harness.record.outcome import exit_status
from harness.training.rank.tasks.sweep import MAKERS
from harness.training.rank.transport import of_log

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("operation", "n", "expected"),
    [
        ("all_reduce", 2, 1.0), ("all_reduce", 4, 1.5), ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75), ("reduce_scatter", 4, 0.75), ("all_to_all", 8, 0.875),
        ("broadcast", 8, 1.0), ("send_recv", 8, 1.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_factors_equal_those_of_nccl_tests(
    operation: str, n: int, expected: float
) -> None:
    assert factor(operation, n) == expected


NCCL_LOG = """\
gpu01:27224:27909 [2] NCCL INFO Channel 02/0 : 2[2] -> 0[0] via P2P/CUMEM
gpu01:27225:27907 [3] NCCL INFO Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IB/3/GDRDMA
gpu01:27225:27907 [3] NCCL INFO Channel 07/0 : 3[3] -> 7[3] [send] via NET/IB/2/GDRDMA/Shared
gpu01:46841:46897 [6] NCCL INFO Channel 02 : 14[e1000] -> 13[a7000] via P2P/direct pointer/read
gpu01:46841:46897 [6] NCCL INFO NVLS multicast support is available on dev 0
"""


def test_nccls_transports_are_read_from_its_log() -> None:
    ways = {"P2P/CUMEM", "NET/IB/GDRDMA", "NET/IB/GDRDMA/Shared", "P2P/direct pointer/read"}
    assert of_log(NCCL_LOG) == ways, (
        "a log line that multicast is available does not mean that NCCL uses it"
    )
    assert of_log(NCCL_LOG + "gpu01:1:2 [0] NCCL INFO Connected NVLS tree\n") == {*ways, "NVLS"}
    assert of_log("") == set()


def row(launch: int = 0, **fields: Any) -> Row:
    made = Row(
        nodes=(1, 1), operation="all_reduce", payload_bytes=4 << 20, transport="tcp eth0",
        time_s=0.1, worst_s=0.2, right=True, launch=launch,
    )  # fmt: skip
    return replace(made, **fields)


def test_bandwidth_is_payload_over_time_times_the_factor() -> None:
    swept_row = row(nodes=(2, 2), time_s=0.5)
    assert swept_row.algorithm_bps == (4 << 20) / 0.5
    assert swept_row.bus_bps == swept_row.algorithm_bps * 1.5


def test_sweeps_cover_one_node_two_nodes_and_the_whole_world() -> None:
    assert shapes((8, 8)) == ((8,), (1, 1), (8, 8))
    assert shapes((1, 1)) == ((1, 1),)
    assert shapes((4,)) == ((4,),)
    assert shapes((1,)) == ()
    assert shapes((4, 8)) == ((8,), (1, 1), (4, 8))


@pytest.mark.parametrize("operation", MAKERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_collective_that_did_nothing_is_not_correct(operation: str, rank: int) -> None:
    if operation == "broadcast" and rank == 0:
        pytest.skip("rank 0 has what it sends")
    made = MAKERS[operation](rank, 2, 16, torch.device("cpu"))
    assert not made.right()


def rule(**fields: Any) -> Threshold:
    made = Threshold(
        name="r", case="fabric/all_reduce", metric="bus_bandwidth", unit="B/s",
        source=BoundSource.REQUIREMENT, at_least=1e6,
    )  # fmt: skip
    return replace(made, **fields)


def run_of(sample_run: RunRecord, rows: list[Row], *rules: Threshold) -> RunRecord:
    return replace(sample_run, plans=(), launches=(), fabric=tuple(rows), thresholds=rules)


def times(n: int, time_s: float, attempt: int = 0) -> list[Row]:
    return [row(launch=i, time_s=time_s * (1 + 0.01 * (i % 3)), attempt=attempt) for i in range(n)]


def confirmed(n: int, time_s: float) -> list[Row]:
    return [*times(n, time_s), *times(n, time_s, attempt=1)]


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        (times(8, 0.1), Status.PASS),
        (times(8, 100.0), Status.INCONCLUSIVE),
        (confirmed(8, 100.0), Status.FAIL),
        (confirmed(4, 100.0), Status.FAIL),
        (times(1, 0.1), Status.INCONCLUSIVE),
        ([], None),
    ],
    ids=["met", "unconfirmed", "confirmed", "fewer", "once", "never"],
)
def test_a_rule_is_judged_over_sweeps(
    sample_run: RunRecord, rows: list[Row], status: Status | None
) -> None:
    verdict = verdicts(run_of(sample_run, rows, rule()))
    assert [v.status for v in verdict] == ([status] if status else [])


def test_a_wrong_result_is_an_error_whatever_its_speed(sample_run: RunRecord) -> None:
    rows = [*times(7, 0.001), row(launch=7, time_s=0.001, right=False)]
    (verdict,) = verdicts(run_of(sample_run, rows, rule()))
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.INCORRECT)
    assert any("WRONG" in line for line in lines(run_of(sample_run, rows)))


def test_a_wrong_result_counts_for_the_exit_status_of_a_session(tmp_path: Path) -> None:
    """``pytest suites/`` derives its exit status from these verdicts."""
    with contextlib.closing(Session(Catalogue(), Settings(), tmp_path, (), Progress())) as session:
        measurer = Measurer(session)
        assert not measurer.judged
        session.run.fabric = [row(launch=0, time_s=0.001, right=False)]
        assert [v.status for v in measurer.judged] == [Status.ERROR]


def test_no_rule_passes_on_a_noisy_host(sample_run: RunRecord) -> None:
    bad = Finding(check="load", level=Level.BAD, text="busy")
    run = replace(run_of(sample_run, times(8, 0.1), rule()), admission=(bad,))
    (verdict,) = verdicts(run)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)


def test_waivers_and_fingerprints_apply_to_rules_on_the_fabric(sample_run: RunRecord) -> None:
    waiver = Waiver(reason="old switch", expires="2999-01-01")
    (fails,) = verdicts(run_of(sample_run, confirmed(8, 100.0), rule(waiver=waiver)))
    assert fails.waived and fails.counts is Status.RECORDED
    (met,) = verdicts(run_of(sample_run, times(8, 0.1), rule(waiver=waiver)))
    assert (met.status, met.reason) == (Status.FAIL, Reason.UNEXPECTED_PASS)
    (other,) = verdicts(run_of(sample_run, times(8, 0.1), rule(fingerprint=("hardware=another",))))
    assert (other.status, other.reason) == (Status.RECORDED, Reason.NOT_COMPARABLE)


def test_a_collective_that_the_backend_refuses_is_skipped(sample_run: RunRecord) -> None:
    rows = [row(launch=i, time_s=None, right=False, refused="not for gloo") for i in range(8)]
    (verdict,) = verdicts(run_of(sample_run, rows, rule()))
    assert verdict.status is Status.SKIP and "not for gloo" in verdict.detail


def test_latency_uses_the_smallest_payload_and_bandwidth_the_largest(sample_run: RunRecord) -> None:
    rows = [row(payload_bytes=8, time_s=1e-5), row(payload_bytes=1 << 20, time_s=0.01), row()]
    (verdict,) = swept(rows)
    assert verdict.latency_s == (1e-5,)
    assert verdict.bus_bps() == ((4 << 20) / 0.1,)


def test_rules_on_other_worlds_and_operations_do_not_match(sample_run: RunRecord) -> None:
    run = run_of(sample_run, times(8, 0.1))
    (row_series,) = series(run)
    assert row_series.matched_by(rule(), run)
    assert row_series.matched_by(rule(case="fabric/*", nodes=(2,), world=(2,)), run)
    assert row_series.matched_by(rule(case="fabric/all_reduce@2x1"), run)
    for other in (
        rule(case="fabric/broadcast"), rule(nodes=(4,)), rule(world=(8,)), rule(hardware="x"),
        rule(metric="recovery_s"),
    ):  # fmt: skip
        assert not row_series.matched_by(other, run)


def test_a_rule_on_the_fabric_is_out_of_reach_without_a_sweep(
    sample_run: RunRecord,
) -> None:
    case = sample_run.plans[0].arms[0].case
    _, why = reach(rule(), [], detect(), case.device, 2, 1)
    assert "scaleproof network" in why


@pytest.mark.parametrize(
    ("carried_mbit", "noticed"), [(100.0, False), (95.0, False), (90.0, True), (110.0, True)]
)
def test_emulated_links_that_miss_their_stated_rate_are_reported(
    sample_run: RunRecord, carried_mbit: float, noticed: bool
) -> None:
    """The tolerance is six per cent of the rate that remains for payload."""
    time_s = (4 << 20) * 8 / (carried_mbit * 1e6 * PAYLOAD_SHARE)
    rows = [row(time_s=time_s, network="+emulated.rate_mbit=100", link_mbit=100.0)]
    (text,) = shaped(run_of(sample_run, rows))
    assert text.startswith("emulated links of 100 Mbit/s carry")
    assert ("do not hold for the stated rate" in text) == noticed
    assert shaped(run_of(sample_run, [replace(rows[0], link_mbit=None)])) == []


def test_a_disabled_transport_is_reported_only_if_the_hardware_has_it(
    sample_run: RunRecord,
) -> None:
    asked = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"}
    run = replace(sample_run, environment=asked)
    there = replace(run, machine=replace(run.machine, infiniband=True, num_gpus=8))

    def told(run: RunRecord) -> list[str]:
        return [t.split(" is switched off by ")[1] for t in sentences(run) if "switched off" in t]

    assert told(replace(run, machine=replace(run.machine, infiniband=False))) == []
    assert told(there) == [
        "NCCL_IB_DISABLE=1, although this hardware has it",
        "NCCL_P2P_DISABLE=1, although this hardware has it",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("transport", "status", "leaves"),
    [
        ("nccl NET/IB/GDRDMA, P2P/CUMEM", Status.PASS, 0),
        ("nccl NET/Socket, P2P/CUMEM", Status.FAIL, 1),
        ("nccl NET/IB, NET/Socket", Status.FAIL, 1),
        ("nccl P2P/MNNVL", Status.PASS, 0),
    ],
)
def test_unused_infiniband_fails_the_shipped_rule(
    sample_run: RunRecord, transport: str, status: Status, leaves: int
) -> None:
    """Judge the shipped rule on two nodes with InfiniBand: four sweeps and a second set of four."""
    (rule,) = (
        r for r in load_thresholds(ROOT / "suites" / "thresholds.toml")
        if r.name == "nodes_network_used"
    )  # fmt: skip
    rows = [
        Row(
            nodes=(8, 8), operation="all_reduce", payload_bytes=1 << 30, transport=transport,
            time_s=0.005, right=True, launch=launch, attempt=launch // 4,
        )
        for launch in range(8)
    ]  # fmt: skip
    link = MachineFabric(link=LinkClass.NVSWITCH, network=Network.INFINIBAND, network_gbit_s=3200.0)
    machine = replace(sample_run.machine, gpu="NVIDIA H100", num_gpus=8, fabric=link)
    settings = replace(sample_run.settings, device=Device.CUDA, nodes=(8, 8))
    run = replace(
        sample_run, machine=machine, settings=settings, plans=(), launches=(), fabric=tuple(rows),
        thresholds=(rule,), admission=(),
    )  # fmt: skip
    (verdict,) = verdicts(run)
    assert (verdict.status, verdict.rule) == (status, "nodes_network_used"), verdict
    assert exit_status([verdict.counts]) == leaves
