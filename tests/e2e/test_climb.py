"""Correctness checks run from the smallest world size up, before any timed block. A sweep ends at
the first incorrect world size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.analysis.verify import verify
from harness.cases import Catalogue, Device, Protocol, Settings, Site
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Purpose, Reason, Status


@pytest.fixture
def measurer(catalogue: Catalogue, tmp_path: Path) -> Iterator[Measurer]:
    session = Session(catalogue, Settings(), tmp_path, (), Progress())
    yield Measurer(session)
    session.close()


@pytest.mark.full
def test_an_incorrect_world_size_ends_the_climb_and_smaller_ones_are_measured(
    measurer: Measurer, catalogue: Catalogue
) -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(4,))
    case = site.case("mutant/paced-small", knobs={"mutant.bug": "no_all_reduce"})
    fast = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)
    plan = normalise(ladder(case, (1, 2, 4), baselines=("plain",), protocol=fast), catalogue)
    measurer.measure([plan])
    by_contrast = {v.contrast: v for v in measurer.verdicts(plan)}
    # One rank has nothing to reduce, so it is measured. The value depends on the host.
    assert by_contrast["efficiency@1/plain"].value is not None
    assert by_contrast["efficiency@2/plain"].reason is Reason.INCORRECT
    above = by_contrast["efficiency@4/plain"]
    assert (above.status, above.reason) == (Status.SKIP, Reason.CLIMB_STOPPED)
    assert "the correctness check of mutant/paced-small/weak@2cpu failed" in above.detail
    arms = {(x.purpose, x.arm) for x in measurer.run.launches}
    assert (Purpose.TIMED, "@1") in arms
    assert not {(p, a) for p, a in arms if a == "@4" or (a == "@2" and p is not Purpose.GATE)}


@pytest.mark.full
def test_pilots_are_shared_and_windows_frozen_before_the_first_block(
    measurer: Measurer, catalogue: Catalogue
) -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,))
    fast = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)
    plans = [
        normalise(ladder(site.case(c), (1,), baselines=("plain",), protocol=fast), catalogue)
        for c in ("ddp/mlp-nano", "fsdp/mlp-nano")
    ]
    measurer.measure(plans)
    pilots = Counter(x.arm for x in measurer.run.launches if x.purpose is Purpose.PILOT)
    assert pilots["plain"] == 2, "twice (A/A), for both plans"
    # Each plan has its own pilot, and a second one if the host was busy.
    assert 2 <= pilots["@1"] <= 4 and pilots.total() == pilots["plain"] + pilots["@1"]
    purposes = [x.purpose for x in measurer.run.launches]
    assert Purpose.PILOT not in purposes[purposes.index(Purpose.TIMED) :]
    run = measurer.run.record(complete=True)
    for x in run.launches:
        if x.purpose is Purpose.TIMED and x.steps:
            window = run.window(next(p for p in plans if p.hash == x.plan), x)
            assert x.steps.count == window.steps - window.cut


@pytest.mark.full
def test_simulated_compute_is_timed_again_if_the_host_stalled(
    measurer: Measurer, catalogue: Catalogue
) -> None:
    """No step fits into a slot of 1 ms: two repeats follow, and then the host counts as noisy."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    knobs = {"paced.mode": "schedule", "paced.plant": "2:0.9", "paced.step_ms": 1.0}
    fast = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)
    case = site.case("ddp/paced-small", knobs=knobs)
    plan = normalise(ladder(case, (2,), baselines=("plain",), protocol=fast), catalogue)
    measurer.measure([plan])
    again = [x for x in measurer.run.launches if x.purpose is Purpose.STALLED]
    assert len(again) == 2 and all(x.stood_still for x in again)
    (verdict,) = measurer.verdicts(plan)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert not verify(measurer.run.record(complete=False), measurer.run.folder).differences
