"""Predictions of world sizes that runs did not measure: the strategy's statements, memory, and
targets of recipes.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest

from harness.base.errors import LaunchError, SpecError
from harness.cases import CaseSpec, Catalogue, Mode
from harness.cases.recipes import ladder
from harness.features.foresight.commands import predict as verb
from harness.features.foresight.learned import learned
from harness.features.foresight.outlook import Outlook
from harness.features.foresight.own import runs
from harness.features.foresight.own.ladders import foresee, planned, room_bytes
from harness.features.foresight.own.runs import MeasuredRung
from harness.features.foresight.own.stated import OPERATIONS, padding, sent_by, stated
from harness.features.foresight.own.swept import _by_kind
from harness.features.foresight.physics.collectives import CollectiveKind, Fabric, nccl
from harness.features.foresight.prediction import predict
from harness.features.foresight.priors import PRIORS
from harness.features.foresight.published.table import PublishedTable, Refused
from harness.features.foresight.report.outlooks import facts as facts_of, recorded
from harness.features.foresight.shapes import Model, Sent, Shape
from harness.features.foresight.terms import UNKNOWNS, ForeseenTerm, facts, seconds
from harness.interface.cli.main import main
from harness.interface.report.page.page import render
from harness.record import (
    CollectiveCount,
    Described,
    Expected,
    Purpose,
    RunRecord,
    ScriptObservations,
)
from harness.record.fabric import Row
from harness.record.store import load

KNOWN = Catalogue()


@pytest.fixture(scope="module")
def run(sample: Path) -> RunRecord:
    return load(sample)


def rungs(run: RunRecord) -> list[MeasuredRung]:
    (of,) = runs.ladders([run], KNOWN).values()
    return of


def at(run: RunRecord, ranks: int, **more: float) -> MeasuredRung:
    """Return the sweep's case at another world size, as if an agent had described it."""
    largest = rungs(run)[-1]
    case = largest.case.at(ranks, (8,) * (ranks // 8))
    told = largest.described.expected
    assert told is not None
    n = ranks / largest.case.world_size
    expected = replace(
        told, sent_bytes=(told.sent_bytes[0],) * ranks,
        payload_bytes={k: (v[0],) * ranks for k, v in told.payload_bytes.items()},
        global_batch=round(told.global_batch * n), **more,
    )  # fmt: skip
    return MeasuredRung(run, case, replace(largest.described, expected=expected), None)


def stating(case: CaseSpec, ranks: int, **payload: float) -> tuple[CaseSpec, Described]:
    """Return a case that issues these bytes of each operation on every rank."""
    expected = Expected(
        sent_bytes=(0.0,) * ranks, payload_bytes={k: (v,) * ranks for k, v in payload.items()},
        largest_message=max(payload.values()) / 4, module="", ideal_efficiency=1.0, memory_bytes=1,
        formula="", global_batch=ranks,
    )  # fmt: skip
    return case.at(ranks), Described(expected=expected)


def test_exchanged_bytes_are_constant_or_grow_with_the_ranks(run: RunRecord) -> None:
    """Gathered shards shrink as the world grows; gathered messages of every rank do not."""
    case = rungs(run)[-1].case

    def told(*sizes: int, **payload: float) -> tuple[Sent, ...]:
        return sent_by({n: stated(stating(case, n, **payload)[1]) for n in sizes})

    (reduced,) = told(2, 8, all_reduce=4e6)
    assert (reduced.kind, reduced.at(1024), reduced.pieces) == (CollectiveKind.ALL_REDUCE, 4e6, 4)
    both = {n: stated(stating(case, n, all_gather=4e6 / n)[1]) for n in (2, 8)}
    (shards,) = sent_by(both)
    assert shards.at(1024) == pytest.approx(4e6)
    (messages,) = told(2, 8, all_gather=1e5)
    assert messages.at(1024) == pytest.approx(1024 * 1e5)
    assert told(2, smoke_signal=1.0) == ()


def test_worlds_on_one_node_belong_to_every_emulated_network(
    run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = rungs(run)
    shaped = [
        replace(large, case=replace(large.case, nodes=(1, 1), knobs={"emulated.rate_mbit": rate}))
        for rate in (100.0, 300.0)
    ]
    monkeypatch.setattr(runs, "rungs", lambda run: [*shaped, small])
    by_name = runs.ladders([run], KNOWN)
    assert [name.rpartition("+")[2] for name in by_name] == [
        "emulated.rate_mbit=100", "emulated.rate_mbit=300",
    ]  # fmt: skip
    assert [[r.case.world_size for r in of] for of in by_name.values()] == [[1, 2], [1, 2]]


def test_a_fabric_sweep_calibrates_each_kind_of_collective() -> None:
    """A library may have three times the latency for one kind of collective, and half the bandwidth
    for another.
    """
    fabric = Fabric(per_node=1, intra_bytes_per_s=1e9, inter_bytes_per_s=1e9)
    rows = []
    for operation, latency, transfer in (
        ("all_reduce", 1, 1),
        ("all_gather", 3, 1),
        ("all_to_all", 1, 2),
    ):
        kind, _ = OPERATIONS[operation]
        for size in (8, 4 << 20):
            cost = nccl(kind, size, 4, 1, fabric)
            rows.append(
                Row(
                    nodes=(1,) * 4, operation=operation, payload_bytes=size, transport="tcp",
                    time_s=latency * cost.latency_s + transfer * cost.transfer_s, right=True,
                )
            )  # fmt: skip
    found_latency, found_transfer = _by_kind(rows, fabric)
    assert found_latency[CollectiveKind.ALL_GATHER] == pytest.approx(3, rel=0.01)
    assert found_transfer[CollectiveKind.ALL_TO_ALL] == pytest.approx(2, rel=0.01)
    assert found_latency[CollectiveKind.ALL_REDUCE] == pytest.approx(1, rel=0.01)
    assert _by_kind([replace(r, right=False) for r in rows], fabric) == ({}, {})


def test_names_of_sweeps_omit_what_they_share() -> None:
    assert runs.shortened(["ddp+seed=1+x=2", "fsdp+seed=1", "ddp+seed=1"]) == [
        "ddp+x=2", "fsdp", "ddp",
    ]  # fmt: skip
    assert runs.shortened(["ddp+seed=1"]) == ["ddp+seed=1"]


def test_a_world_size_is_predicted_with_its_memory(run: RunRecord) -> None:
    outlook = foresee("ddp", rungs(run), at(run, 64, memory_bytes=3 << 20), KNOWN)
    assert not isinstance(outlook, Refused)
    (foreseen,) = outlook
    assert foreseen.predicted.shape.cores == 0, "ranks on separate machines share no cores"
    assert foreseen.memory_bytes == 3 << 20 and foreseen.fits and foreseen.device_hours > 0
    assert set(foreseen.measured) == {1, 2} and [p.shape.ranks for p in foreseen.path] == [
        4,
        8,
        16,
        32,
    ]
    assert foreseen.predicted.shape.sent, (
        "the prediction must use the bytes that the strategy states"
    )


def test_the_interval_reflects_the_scatter_of_launches(run: RunRecord) -> None:
    """If launches scatter by a fifth, the prediction at a measured size must be as uncertain."""
    quiet = [replace(rung, log_sd=0.0) for rung in rungs(run)]
    noisy = [replace(rung, log_sd=0.2) for rung in rungs(run)]
    widths = []
    for ladder_ in (quiet, noisy):
        table = runs.table("own", ladder_, KNOWN, on=(1, 2), target=at(run, 4))
        assert isinstance(table, PublishedTable)
        (size,) = predict(table, learned()).predicted
        widths.append(math.log(size.high / size.low))
    assert widths[0] < 0.2 < 2 * 1.28 * 0.2 < widths[1]


def test_the_uncertainty_of_a_mean_follows_from_its_launches(run: RunRecord) -> None:
    for rung in rungs(run):
        timed = [x for x in run.by_case[rung.case.hash] if x.purpose is Purpose.TIMED and x.usable]
        logs = [math.log(x.steps.mean_s) for x in timed if x.steps is not None]
        assert rung.log_sd > stdev(logs) / len(logs) ** 0.5 > 0


def test_a_size_that_does_not_fit_has_no_efficiency(run: RunRecord) -> None:
    target = at(run, 64)
    room = room_bytes(target.case, run.machine)
    assert room is not None
    planned_run = asking(run, at(run, 64, memory_bytes=int(2 * room)))
    (sentence,) = recorded(planned_run)
    assert "does not fit" in sentence and "efficiency" not in sentence


def test_a_size_that_a_strategy_refuses_is_refused(run: RunRecord) -> None:
    target = at(run, 64)
    target = replace(target, described=Described(unsupported="64 stages of 4 blocks"))
    outlook = foresee("ddp", rungs(run), target, KNOWN)
    assert isinstance(outlook, Refused) and "64 stages of 4 blocks" in outlook.why
    broken = replace(target, described=Described(error="mine.py:3: KeyError"))
    outlook = foresee("ddp", rungs(run), broken, KNOWN)
    assert isinstance(outlook, Refused) and "mine.py:3" in outlook.why, (
        "a failing description must not be replaced by an estimate"
    )


def test_padding_of_shards_is_detected(run: RunRecord) -> None:
    """A parameter of 400 rows leaves most of 1,024 ranks with an empty, padded shard."""
    case = rungs(run)[-1].case

    def rung(ranks: int, gathered: float) -> MeasuredRung:
        payload = {"all_gather": gathered / ranks, "reduce_scatter": gathered / 2}
        return MeasuredRung(run, *stating(case, ranks, **payload), None)

    assert padding({8: rung(8, 2e6).stated, 1024: rung(1024, 5.1e6).stated}) == pytest.approx(2.55)
    messages = {n: stated(stating(case, n, all_gather=1e5)[1]) for n in (8, 1024)}
    assert padding(messages) == 1.0, "messages that every rank adds are not padding"


def asking(run: RunRecord, target: MeasuredRung) -> RunRecord:
    """Return the run as if its recipe had asked for a prediction at that world size."""
    plan = next(p for p in run.plans if any(a.case.strategy == "ddp" for a in p.arms))
    return replace(
        run, plans=tuple(replace(p, target=target.case) if p is plan else p for p in run.plans),
        described={**run.described, target.case.hash: target.described},
    )  # fmt: skip


def test_a_prediction_that_a_recipe_asks_for_is_recorded_and_not_judged(run: RunRecord) -> None:
    asked = asking(run, at(run, 64))
    ((target, outlook),) = planned(asked)
    assert target.case.world_size == 64 and isinstance(outlook[0], Outlook)
    (sentence,) = recorded(asked)
    assert sentence.startswith("RECORDED") and "is predicted: efficiency" in sentence
    assert asked.verdicts == run.verdicts
    page = render(asked)
    assert "Predicted, not measured" in page and "64 ranks" in page
    assert list(planned(run)) == [] and "Predicted, not measured" not in render(run)


def test_small_worlds_use_the_batch_per_rank_of_the_predicted_world(run: RunRecord) -> None:
    case = replace(rungs(run)[-1].case, mode=Mode.STRONG, global_batch=2048, micro_batch=None)
    plan = ladder(case, (1, 2), predict=(64, 8))
    assert plan.target is not None and plan.target.nodes == (8,) * 64
    assert plan.target.global_batch == 2048
    assert {(a.case.mode, a.case.micro_batch) for a in plan.arms} == {(Mode.WEAK, 4)}
    with pytest.raises(SpecError, match="does not divide over 512 ranks"):
        ladder(replace(case, global_batch=1000), (1, 2), predict=(64, 8))


def test_held_out_world_sizes_are_compared_with_their_measurement(run: RunRecord) -> None:
    """Predict the third of three world sizes from the other two and print it beside its
    measurement.
    """
    small, large = rungs(run)
    third = replace(at(run, 8), step_s=large.step_s)
    read_table = runs.table("ddp", [small, large, third], KNOWN, on=(1, 2))
    assert isinstance(read_table, PublishedTable)
    assert [(p.shape.ranks, p.calibrates) for p in read_table.points] == [
        (1, True),
        (2, True),
        (8, False),
    ]
    refused = runs.table("ddp", [small, large], KNOWN, on=(2, 4))
    assert isinstance(refused, Refused) and "two world sizes are needed" in refused.why


def test_the_command_describes_the_world_size_and_writes_a_page(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "foreseen.html"
    words = ["predict", str(sample), "--to", "4x8", "--page", str(page), "--json"]
    assert main(words) == 0
    (document,) = json.loads(capsys.readouterr().out)["outlooks"]
    assert document["memory_bytes"] > 1e5 and document["predicted"]["shape"]["sent"]
    assert "<svg" in page.read_text() and "32 ranks" in page.read_text()


def test_runs_without_a_timed_launch_are_refused(
    run: RunRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "load", lambda path: replace(run, launches=()))
    assert main(["predict", "RUN", "--to", "8"]) == 4
    assert "contain no timed training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--to", "8", "--set", "colour=red"], "--set colour: no such field"),
        (["--calibrate-on", "1"], "--calibrate-on 1"),
        (["--page", "x.html", "--calibrate-on", "1,2"], "--page needs a size"),
        (["--to", "8", "--only", "nothing"], "no such scaling sweep"),
    ],
)
def test_invalid_options_are_one_clear_error(
    words: list[str], says: str, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(sample), *words]) == 4
    assert says in capsys.readouterr().err


def test_without_an_agent_memory_is_not_predicted(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predictions also work on machines without torch."""

    def none(*_: object) -> None:
        raise LaunchError("0 of 1 agents are ready")

    monkeypatch.setattr(verb, "described", none)
    assert main(["predict", str(sample), "--to", "4x8"]) == 0
    shown = capsys.readouterr().out
    assert "memory and exchange at that size are unknown: 0 of 1 agents are ready" in shown
    assert "32 ranks" in shown and "memory n/a" in shown


def test_a_script_is_predicted_from_its_observed_collectives(run: RunRecord) -> None:
    """A user's script states no bytes, so the collectives of its last step were counted."""
    case = replace(
        rungs(run)[-1].case, strategy="script", model="train", script="train.py", knobs={}
    )

    def rung(ranks: int, step_s: float) -> MeasuredRung:
        seen = (
            {} if ranks == 1 else {"all_reduce": CollectiveCount(count=3, payload_bytes=12_000_000)}
        )
        watched = ScriptObservations(
            world_size=ranks, backend="gloo", optimizers=("SGD",), backwards=2, regular=True,
            even=True, roots={}, start="", first="", sharded=False, parameter_bytes=12_000_000,
            collectives=seen,
        )  # fmt: skip
        return MeasuredRung(
            run, case.at(ranks), Described(), step_s, watched=watched, samples=16.0 * ranks
        )

    ladder_ = [rung(1, 0.1), rung(2, 0.12), rung(4, 0.125)]
    outlook = foresee("script", ladder_, MeasuredRung(run, case.at(16), Described(), None), KNOWN)
    assert not isinstance(outlook, Refused)
    (foreseen,) = outlook
    shape = foreseen.predicted.shape
    assert (shape.micros, shape.micro_batch, shape.model.params) == (2, 8.0, 3e6)
    assert shape.sent == (Sent(kind=CollectiveKind.ALL_REDUCE, num_bytes=12e6, pieces=3),)
    assert foreseen.memory_bytes is None and 0.5 < foreseen.predicted.efficiency < 0.9
    blind = [replace(r, watched=None) for r in ladder_]
    refused = foresee("script", blind, MeasuredRung(run, case.at(16), Described(), None), KNOWN)
    assert isinstance(refused, Refused) and "was not watched" in refused.why


def test_ranks_queue_for_shared_cores_only_while_they_compute() -> None:
    """Emulated nodes share one machine; a rank that waits for a slow link needs no core."""
    shape = Shape(ranks=8, micro_batch=16.0, model=Model(params=1e6), cpu_s=0.01, cores=2)
    assert shape.queued_s == pytest.approx(0.03) and replace(shape, ranks=2).queued_s == 0.0
    assert replace(shape, cores=0).queued_s == 0.0, "separate nodes share no cores"
    draws = np.log([[PRIORS[u].median for u in UNKNOWNS] + [1.0]])

    def fixed(rate: float, cores: int) -> float:
        fabric = Fabric(per_node=1, intra_bytes_per_s=1e12, inter_bytes_per_s=rate)
        given = facts([replace(shape, cores=cores)], (0,), fabric, 1)
        return float(seconds(given, draws)[ForeseenTerm.HOST][0, 0])

    assert fixed(1e12, 2) - fixed(1e12, 0) == pytest.approx(0.03, rel=0.05)
    assert fixed(1e6, 2) == fixed(1e6, 0)


def test_a_disturbed_sweep_gives_a_prediction_marked_implausible(run: RunRecord) -> None:
    small, large = rungs(run)
    slow = replace(small, step_s=2 * (large.step_s or 0.0))
    outlook = foresee("ddp", [slow, large], at(run, 64), KNOWN)
    assert not isinstance(outlook, Refused)
    assert "implausible" in dict(facts_of(outlook[0]))["efficiency"]
    fine = foresee("ddp", [small, large], at(run, 64), KNOWN)
    assert not isinstance(fine, Refused)
    assert "implausible" not in dict(facts_of(fine[0]))["efficiency"]


def test_a_sweep_that_has_no_case_of_the_size_is_refused_alone(run: RunRecord) -> None:
    """The shares of two devices do not say how fast the others of a larger world are."""
    small, large = rungs(run)
    uneven = replace(large, case=replace(large.case, shares=(1.0, 0.5)))
    ladders = {"even": [small, large], "uneven": [small, uneven]}
    cases, refused = verb.cases_at(ladders, (8, ()), {}, KNOWN)
    assert list(cases) == ["even"] and cases["even"].world_size == 8
    assert [refusal.id for refusal in refused] == ["uneven"] and "shares" in refused[0].why
    with pytest.raises(SpecError, match="shares"):
        verb.cases_at({"uneven": [small, uneven]}, (8, ()), {}, KNOWN)
