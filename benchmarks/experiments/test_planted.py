"""Tests of known efficiencies with two short sweeps; ``planted.py`` has 25 long ones per cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments import planted

pytestmark = pytest.mark.alone

#: Efficiency, world size and strategy of each sweep.
LADDERS = [(0.85, 2, "pipeline"), (0.70, 4, "ddp")]


@pytest.fixture(scope="module")
def ladders(tmp_path_factory: pytest.TempPathFactory) -> list[planted.Ladder]:
    cells = [(*ladder, seed) for seed, ladder in enumerate(LADDERS)]
    measured_ladders = list(planted.measure(cells, 2, tmp_path_factory.mktemp("planted"), steps=3))
    if len(measured_ladders) < len(cells) / 2:
        pytest.skip(
            f"the host stood still in {len(cells) - len(measured_ladders)} of {len(cells)} ladders"
        )
    return measured_ladders


@pytest.mark.full
def test_the_measurement_adds_no_error(ladders: list[planted.Ladder]) -> None:
    assert [(f.name, f.truth, f.bias) for f in ladders if abs(f.bias) > 0.002] == []


@pytest.mark.full
def test_intervals_hold_the_truth(ladders: list[planted.Ladder]) -> None:
    """The noise has a fixed seed, so the result does not depend on chance."""
    assert sum(f.covered for f in ladders) >= len(ladders) - 1


@pytest.mark.full
def test_bounds_two_points_from_the_truth_are_not_decided_wrongly(
    ladders: list[planted.Ladder],
) -> None:
    assert planted.decisions(ladders)[1] == 0


@pytest.mark.full
def test_like_arms_are_hardly_ever_told_apart(tmp_path: Path) -> None:
    """In 20 A/A comparisons of real launches, at most 4 are decided (nominal: 2 of 20)."""
    from harness.analysis.judging import contrast_data as paired
    from harness.cases import Catalogue, Device, Protocol, Settings, Site
    from harness.cases.recipes import like
    from harness.cases.targets import normalise
    from harness.measure.measurer import Measurer
    from harness.measure.progress import Progress
    from harness.measure.session import Session
    from harness.record import Status

    known = Catalogue()
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    case = site.case("ddp/paced-small", knobs={"paced.mode": "schedule", "paced.step_ms": 60.0})
    session = Session(known, Settings(timeline=False, fabric=False), tmp_path, (), Progress())
    measurer = Measurer(session)
    decided = measured = 0
    try:
        for seed in range(20):
            protocol = Protocol(steps=6, cut=1, min_blocks=8, max_blocks=8, seed=seed)
            plan = normalise(like(case, protocol=protocol), known)
            measurer.measure([plan])
            run = measurer.run.record(complete=True)
            pairs = paired.pairs(run, plan, plan.contrasts[0]).values
            if not pairs:
                continue  # the host stalled
            measured += 1
            ladder = planted.Ladder(
                name="A/A", world=2, seed=seed, truth=1.0, pairs=pairs, bias=0.0
            )
            decided += ladder.decided(1.0) is not Status.INCONCLUSIVE
    finally:
        session.close()
    assert measured >= 18 and decided <= 4
