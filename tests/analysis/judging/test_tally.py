"""One count of requirements: each is counted once, and a control is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from hypothesis import given, settings, strategies as st

from harness.analysis.judging.tally import requirements, tally, wrong
from harness.record import Reason, RunRecord, Status, Verdict

Drawn: TypeAlias = tuple[Status, Reason, str | None, bool, int]

kinds = st.tuples(
    st.sampled_from(list(Status)),
    st.sampled_from([Reason.MET, Reason.CAUGHT]),
    st.sampled_from(["a rule", None]),
    st.booleans(),
    st.integers(0, 2),
)


def verdicts_of(run: RunRecord, drawn: list[Drawn]) -> RunRecord:
    like = run.verdicts[0]
    made: list[Verdict] = [
        replace(like, status=status, reason=reason, rule=rule, waived=waived, case=f"case{number}")
        for status, reason, rule, waived, number in drawn
    ]
    return replace(run, verdicts=tuple(made))


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, max_size=12))
def test_every_requirement_is_counted_once(sample_run: RunRecord, drawn: list[Drawn]) -> None:
    run = verdicts_of(sample_run, drawn)
    counted = tally(run)
    parts = (counted.hold, counted.failed, counted.errors, counted.undecided)
    assert sum(parts) + counted.waived + counted.recorded == counted.total == len(requirements(run))
    assert min(*parts, counted.waived, counted.recorded) >= 0
    assert counted.controls == sum(reason is Reason.CAUGHT for _, reason, *_ in drawn)
    assert counted.beside == len(wrong(run))


def test_the_words_of_a_count(sample_run: RunRecord) -> None:
    drawn: list[Drawn] = [(Status.PASS, Reason.MET, "a rule", False, n) for n in range(2)]
    drawn += [
        (Status.FAIL, Reason.MET, "a rule", True, 2),
        (Status.FAIL, Reason.CAUGHT, "a rule", False, 3),
        (Status.INCONCLUSIVE, Reason.MET, None, False, 4),
        (Status.ERROR, Reason.MET, None, False, 5),
    ]
    run = verdicts_of(sample_run, drawn)
    words = str(tally(run)).partition(" (")[0]
    assert words == "2 of 3 requirements hold, 1 waived, 1 beside them wrong"
    assert [v.case for v in wrong(run)] == ["case5"]
