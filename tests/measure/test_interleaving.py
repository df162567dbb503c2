"""Interleaved comparisons rarely distinguish equal environments, and detect a difference of 2 %."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from harness.analysis.compare import Reading
from harness.base.errors import BusyError, Exit, LaunchError, OutOfTimeError, ScaleproofError
from harness.cases import Protocol
from harness.interface.report.comparison import interleaved
from harness.measure import interleaving
from harness.measure.interleaving import FEWEST_BLOCKS, MOST_BLOCKS, Interleaver, difference
from harness.record import Purpose, RankRecord, RunRecord


def decided(longer: float, sd: float, draw: np.random.Generator) -> tuple[Reading, int]:
    """Return the reading after blocks of two pairs, judged as ``compared`` does, and the pairs."""
    pairs: list[float] = []
    while True:
        pairs += list(draw.normal(longer, sd, 2))
        reading = difference("case", pairs).reading
        if len(pairs) >= 2 * FEWEST_BLOCKS and reading is not Reading.UNDECIDED:
            return reading, len(pairs)
        if len(pairs) >= 2 * MOST_BLOCKS:
            return reading, len(pairs)


def test_equal_environments_differ_at_most_once_in_twenty() -> None:
    draw = np.random.default_rng(1)
    readings = [decided(0.0, 0.01, draw)[0] for _ in range(400)]
    wrong = sum(r in (Reading.FASTER, Reading.SLOWER) for r in readings)
    assert wrong <= 0.05 * len(readings)
    assert readings.count(Reading.SAME) >= 0.8 * len(readings)


@pytest.mark.parametrize(("longer", "reading"), [(0.02, Reading.SLOWER), (-0.02, Reading.FASTER)])
def test_a_difference_of_two_percent_is_found(longer: float, reading: Reading) -> None:
    draw = np.random.default_rng(2)
    readings = [decided(longer, 0.01, draw) for _ in range(200)]
    assert sum(r is reading for r, _ in readings) >= 198
    assert np.mean([n for _, n in readings]) <= 12


@pytest.mark.parametrize(
    ("wrong", "error", "status"),
    [
        ("slot too short: 16 deadlines of the schedule missed", BusyError, Exit.INCONCLUSIVE),
        ("loss: step 3 gives 2, the reference 1", LaunchError, Exit.ERROR),
    ],
)
def test_a_busy_host_is_no_broken_environment(
    sample_run: RunRecord,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
    error: type[ScaleproofError],
    status: Exit,
) -> None:
    """A version whose slots were too short is not broken, and can be measured again."""
    launch = replace(next(x for x in sample_run.launches if x.steps), wrong=(wrong,))
    run = SimpleNamespace(launches=[launch], bare=lambda: sample_run)
    interleaver = Interleaver.__new__(Interleaver)
    interleaver._session, interleaver.blocks = SimpleNamespace(run=run), 0  # type: ignore[assignment]
    interleaver._case, interleaver._protocol = (
        sample_run.plans[0].arm("@2").case,
        Protocol(steps=8, cut=2),
    )
    interleaver._measurer = SimpleNamespace(measure=list, broken=lambda plan: None)  # type: ignore[assignment]
    monkeypatch.setattr(interleaving, "pairs", lambda *of: SimpleNamespace(values=()))
    with pytest.raises(error) as raised:
        interleaver.block("1", "6")
    assert raised.value.exit is status and wrong in raised.value.what


def blocked(run: RunRecord, monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Return the log ratios of a block with the launches in ``run``, for all contrasts."""
    plan = next(p for p in run.plans if p.contrasts)
    monkeypatch.setattr(interleaving, "_plan", lambda *_: plan)
    monkeypatch.setattr(interleaving, "replace", lambda item, **_: item)  # its name is its hash
    interleaver = Interleaver.__new__(Interleaver)
    state = SimpleNamespace(launches=run.launches, bare=lambda: run, folder="runs/r")
    interleaver._session = SimpleNamespace(run=state)  # type: ignore[assignment]
    interleaver._case, interleaver._protocol = plan.arms[0].case, plan.protocol
    interleaver._measurer = SimpleNamespace(measure=list, broken=lambda _: None)  # type: ignore[assignment]
    interleaver.blocks = 0
    return interleaver.beside("A", [contrast.name for contrast in plan.contrasts])


def test_incorrect_training_gets_no_ratio(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contrast that cannot get a verdict gets no ratio, although its pairs were measured."""
    assert all(blocked(sample_run, monkeypatch))
    launches = tuple(
        replace(x, ranks=tuple(map(incorrect, x.ranks))) if x.purpose is Purpose.GATE else x
        for x in sample_run.launches
    )
    with pytest.raises(LaunchError, match="cannot be compared") as raised:
        blocked(replace(sample_run, launches=launches), monkeypatch)
    assert raised.value.exit is Exit.ERROR


def test_a_block_cut_by_the_time_budget_is_no_error(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaving, "pairs", lambda *of: SimpleNamespace(values=()))
    cut = replace(sample_run, out_of_time=tuple(p.hash for p in sample_run.plans))
    with pytest.raises(OutOfTimeError, match="the time budget ended") as raised:
        blocked(cut, monkeypatch)
    assert raised.value.exit is Exit.INCONCLUSIVE


def incorrect(rank: RankRecord) -> RankRecord:
    return replace(rank, checks=tuple(replace(check, ok=False) for check in rank.checks))


def test_an_a_b_comparison_shows_its_a_a_ratio() -> None:
    """If launches of A differ from each other, the difference of B may have the same cause."""
    read = difference("case", [-0.05, -0.05, -0.05, -0.05, -0.05, -0.06])
    assert read.reading is Reading.FASTER and read.alike is None
    quiet = interleaving.beside_itself(read, [0.002, -0.001, -0.001, 0.001])
    loaded = interleaving.beside_itself(read, [0.051, 0.05, 0.049, 0.05, 0.05, 0.052])
    names = [("A", "a/bin/python"), ("B", "b/bin/python")]
    screens = [
        " ".join(" ".join(interleaved([pairs_of_it], names, {}, 80)).split())
        for pairs_of_it in (quiet, loaded)
    ]
    assert "A/A case: 1.000" in screens[0] and "differs from itself" not in screens[0]
    assert "A/A case: 1.05" in screens[1] and "B/A is not reliable" in screens[1]


def test_the_a_a_ratio_compares_launches_of_one_block(sample_run: RunRecord) -> None:
    """The A/A ratios are those of successive throughputs of one arm in the record."""
    plan = next(p for p in sample_run.plans if p.contrasts)
    interleaver = Interleaver.__new__(Interleaver)
    interleaver._session = SimpleNamespace(run=SimpleNamespace(bare=lambda: sample_run))  # type: ignore[assignment]
    interleaver._case = plan.arms[0].case
    of_arm = [
        launch.throughput
        for launch in sample_run.launches
        if launch.purpose is Purpose.TIMED
        and launch.plan == plan.hash
        and launch.arm == plan.arms[0].name
    ]
    ratios = [b / a for a, b in zip(of_arm[::2], of_arm[1::2], strict=False) if a and b]
    alike = interleaver.alike(plan.arms[0].case.setup)
    assert len(ratios) > 1 and np.exp(alike) == pytest.approx(ratios)
