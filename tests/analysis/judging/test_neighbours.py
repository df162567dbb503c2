"""A baseline that was slowed by worlds beside it does not pass; if the effect is clear, it is
measured alone.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from harness.analysis.judging import biases
from harness.base.documents import from_doc, to_doc
from harness.measure import orders
from harness.record import Reason, RunRecord, Status
from tests.editing import bound, even, judged, timed

SUBJECT = "efficiency@2/plain"


def probe(doc: Any, slower: float, number: int, slot: str = "") -> None:
    """Add a probe: a launch of the baseline that is slower than its first timed one by this factor."""
    launch = copy.deepcopy(timed(doc, "plain")[0])
    name = f"probe-{slot or 'alone'}-{number:04}"
    launch |= dict(launch=name, purpose="probe", slot=slot, block=-1, turn=number)
    launch |= dict(hosts=[number], devices=[0] if slot else [])
    for rank in launch["ranks"]:
        rank["window_s"] *= 1 + slower
    doc["launches"].insert(0, launch)


def packed(slower: float, efficiency: float = 0.75, beside: int = 8) -> Any:
    """Return an edit after which all baselines ran beside other worlds, with probes that measure
    the effect.
    """

    def edit(doc: Any) -> None:
        even(doc, efficiency)
        bound(doc, at_least=0.72)
        for x in timed(doc, "plain"):
            x["slot"] = "together"
        for number, luck in enumerate((0.001, -0.001)):
            probe(doc, luck, number)
        for number in range(beside):
            probe(doc, slower + 0.002 * ((number + 1) % 3 - 1), number, "beside")

    return edit


def run_of(run: RunRecord, edit: Any) -> RunRecord:
    doc = json.loads(json.dumps(to_doc(run)))
    edit(doc)
    return from_doc(RunRecord, doc)


def test_worlds_beside_a_baseline_without_effect_allow_a_pass(sample_run: RunRecord) -> None:
    assert judged(sample_run, packed(0.0))[SUBJECT].status is Status.PASS


def test_a_baseline_slowed_by_more_than_the_gap_is_inconclusive(
    sample_run: RunRecord,
) -> None:
    """At an efficiency of 0.75, 4 % of the baseline's speed are 3 points."""
    verdict = judged(sample_run, packed(0.05))[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NEIGHBOURS)
    assert "concurrent launches may have taken 4.9%" in verdict.detail


def test_few_probes_widen_the_possible_loss(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a single probe the effect is known poorly, so results close to a bound stay undecided."""
    monkeypatch.setattr(biases, "like_launches_sd", lambda launches: 0.005)

    def lost(beside: int) -> float:
        run = run_of(sample_run, packed(0.002, beside=beside))
        return biases.lost_to_neighbours(run, run.plans[0], run.plans[0].contrasts[0])

    assert 0.002 < lost(9) < lost(1)


def test_launches_that_ran_alone_lost_nothing(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        packed(0.05)(doc)
        for x in timed(doc, "plain"):
            x["slot"] = ""

    assert judged(sample_run, edit)[SUBJECT].status is Status.PASS


def test_worlds_that_clearly_disturb_the_baseline_are_separated(sample_run: RunRecord) -> None:
    quiet, disturbed = (run_of(sample_run, packed(slower)) for slower in (0.0, 0.05))
    assert not biases.disturb(quiet, quiet.plans[0])
    assert biases.disturb(disturbed, disturbed.plans[0])


def test_a_slow_device_is_reported(sample_run: RunRecord) -> None:
    def edit(doc: Any) -> None:
        packed(0.0)(doc)
        probe(doc, 0.05, 9, "beside")

    assert biases.slow_devices(run_of(sample_run, packed(0.0))) == []
    (sentence,) = (d.sentence for d in biases.slow_devices(run_of(sample_run, edit)))
    assert sentence.startswith("node 9 (") and "slower than the median of 9" in sentence


def test_a_baseline_beside_worlds_without_probes_is_inconclusive(
    sample_run: RunRecord,
) -> None:
    def edit(doc: Any) -> None:
        packed(0.0)(doc)
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] != "probe"]

    verdict = judged(sample_run, edit)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NEIGHBOURS)


def test_a_baseline_that_was_only_probed_alone_is_separated(sample_run: RunRecord) -> None:
    """All its probes ran alone, so the effect of worlds beside it is unknown."""
    run = run_of(sample_run, packed(0.0, beside=0))
    assert biases.disturb(run, run.plans[0])


def test_a_baseline_is_probed_again_before_worlds_are_separated(sample_run: RunRecord) -> None:
    """Another probe costs one launch, whereas a separate block costs at least four."""
    plan = sample_run.plans[0]
    for have, turn in ((1, 2), (3, 4), (biases.PROBES, None)):

        def probed(doc: Any, have: int = have) -> None:
            for number in range(have):
                probe(doc, 0.0, number)
            probe(doc, 0.0, have, "beside")

        run = run_of(sample_run, probed)
        further = orders.probe_again(run, plan.arms)  # type: ignore[arg-type]
        assert further == (None if turn is None else (turn, plan.arm("plain")))
    never = orders.probe_again(sample_run, plan.arms)  # type: ignore[arg-type]
    assert never is None, "worlds that always ran alone need no probe"
