"""Every output of a run prints the same results with the same keys, judged intervals, statuses and
counts.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.reading import load
from harness.analysis.results import (
    Result,
    defects,
    document,
    ranked,
    required,
    results,
    tally,
    worst,
)
from harness.base.documents import from_doc
from harness.features.sharing.figures import figures as shared_figures
from harness.features.site.entries import entry_of
from harness.interface import export
from harness.interface.notebook import ShownResult
from harness.interface.report import digest, figures, screen, tables
from harness.interface.report.headline import headline
from harness.interface.report.page.page import render
from harness.record import SCHEMA, Reason, RunRecord, Status, Verdict
from harness.record.upgrade import upgrade

GOLDEN = Path(__file__).parents[1] / "golden"
#: Names of the golden records; each is also judged with the rules of the newest schema.
RECORDS = ("samples/ddp-nano", "samples/ddp-nano-again", "record-v1", "record-v4", "main-job")
Drawn: TypeAlias = tuple[Status, Reason, str | None, bool, int]


def read(name: str) -> RunRecord:
    if name == "main-job":
        doc = json.loads(gzip.decompress((GOLDEN / "main-job.json.gz").read_bytes()))
        return from_doc(RunRecord, upgrade(doc, SCHEMA), "record")
    return load(GOLDEN / name)


def today(run: RunRecord) -> RunRecord:
    run = replace(run, schema=SCHEMA)
    return replace(run, verdicts=verdicts(run))


@pytest.fixture(scope="session", params=[(name, new) for name in RECORDS for new in (False, True)])
def run(request: pytest.FixtureRequest) -> RunRecord:
    name, new = request.param
    return today(read(name)) if new else read(name)


def identity(row: Any) -> tuple[Any, ...]:
    """Return the key of a row with its judged interval and status."""
    names = ("plan", "case", "world", "metric", "against", "value", "low", "high", "status")
    return tuple(row[name] for name in names)


def same_outputs(run: RunRecord) -> None:
    """Raise AssertionError if two outputs of a run differ in a key, an interval, a status or a
    count.
    """
    every = sorted(map(identity, map(document, results(run))), key=str)
    summary = digest.document(run)
    embedded = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', render(run), re.S)
    assert embedded is not None
    page = json.loads(embedded[1].replace("\\u003c", "<"))
    assert sorted(map(identity, summary["verdicts"]), key=str) == every
    assert sorted(map(identity, page["verdicts"]), key=str) == every
    assert len(digest.table(run)) == 1 + len(every) or not every
    lines = " ".join(" ".join(tables.verdict_lines(run, 400)).split())
    markdown = "\n".join(digest.markdown(run))
    for result in ranked(run):
        printed = f"{result.case} {figures.metric(result)}"
        figure = figures.figure(result)
        assert f"{printed} {figure}".strip() in lines
        assert figures.interval(result, ".4g") in markdown
        assert figures.figure(result, ".4g") in ShownResult(result=result)._repr_html_()
    efficiencies = {(r.case, r.against, r.value, r.low, r.high) for r in results(run)
                    if r.metric == "efficiency" and r.value is not None}  # fmt: skip
    assert efficiencies == {
        (f.case, f.measure.removeprefix("efficiency v "), f.value, f.low, f.high)
        for f in shared_figures(run) if f.measure.startswith("efficiency v ")
    }  # fmt: skip
    metrics = export.openmetrics([run])
    assert metrics.count("scaleproof_verdict_info{") == len({
        (r.case, r.metric, r.against, r.rule, r.status) for r in results(run)
    })  # fmt: skip
    _same_on_the_site(run)
    _same_counts(run, summary, page)


def _same_on_the_site(run: RunRecord) -> None:
    entry = entry_of(run, "run", "", "")
    known = {(r.case, r.metric, r.against, r.value, r.low, r.high, r.counts) for r in results(run)}
    for card in entry.cases:
        if card.metric:
            key = (card.case, card.metric, card.against, card.value, card.low, card.high)
            assert (*key, card.status) in known
    assert entry.tally == str(tally(run)) or not required(run)


def _same_counts(run: RunRecord, summary: dict[str, Any], page: dict[str, Any]) -> None:
    first = headline(run)
    assert summary["headline"] == page["headline"] == first
    if required(run):
        count = str(tally(run))
        outputs = (first, digest.markdown(run)[0], " ".join(screen_lines(run)))
        assert all(count in output for output in outputs), count
        row = worst(run)
        assert row is not None and row in screen.shown_results(run)
        assert first.startswith(f"{row.counts}: ")


def screen_lines(run: RunRecord) -> list[str]:
    return screen.lines(run, Path("RUN"), "again", 2000)


def test_all_outputs_of_a_golden_record_are_the_same(run: RunRecord) -> None:
    same_outputs(run)


def test_every_result_has_all_five_parts_of_its_key(run: RunRecord) -> None:
    for result in results(run):
        key = result.key
        assert key.case and key.metric and key.baseline
        assert bool(key.plan) == bool(key.world), "sweeps and trials belong to no plan"


statuses = st.sampled_from([s for s in Status if s not in (Status.SKIP,)])
changes = st.lists(st.tuples(st.integers(0, 40), statuses, st.booleans()), max_size=6)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changed=changes)
def test_all_outputs_are_the_same_for_any_verdicts(
    main_job: RunRecord, changed: list[tuple[int, Status, bool]]
) -> None:
    every = list(main_job.verdicts)
    for place, status, waived in changed:
        old = every[place % len(every)]
        detail = f"changed to {status}"
        every[place % len(every)] = replace(old, status=status, waived=waived, detail=detail)
    same_outputs(replace(main_job, verdicts=tuple(every)))


def test_the_interval_of_a_status_is_the_judged_one(main_job: RunRecord) -> None:
    """A widened interval is printed with its cause, and the measured one is kept beside it."""
    old = next(v for v in main_job.verdicts if v.rule and v.metric == "efficiency" and v.pairs)
    wide = replace(old, low=0.1, high=9.0, widened="load", status=Status.INCONCLUSIVE)
    changed = replace(main_job, verdicts=(wide,))
    (result,) = results(changed)
    assert result.measured is not None and result.judged is not None
    assert (result.judged.low, result.judged.high) == (0.1, 9.0)
    assert result.measured.low is not None and result.measured.low > 0.1
    assert "[0.10, 9.00] load" in " ".join(screen_lines(changed))


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
def test_every_required_result_is_counted_once(sample_run: RunRecord, drawn: list[Drawn]) -> None:
    run = verdicts_of(sample_run, drawn)
    counted = tally(run)
    parts = (
        counted.hold,
        counted.failed,
        counted.errors,
        counted.undecided,
        counted.not_comparable,
    )
    assert sum(parts) + counted.waived + counted.recorded == counted.total == len(required(run))
    assert min(*parts, counted.waived, counted.recorded) >= 0
    assert counted.controls == sum(reason is Reason.CAUGHT for _, reason, *_ in drawn)
    assert counted.beside == len(defects(run))
    assert sum(count for _, count, _ in counted.parts) >= counted.total


def test_a_count_is_worded_by_status(sample_run: RunRecord) -> None:
    drawn: list[Drawn] = [(Status.PASS, Reason.MET, "a rule", False, n) for n in range(2)]
    drawn += [
        (Status.FAIL, Reason.MET, "a rule", True, 2),
        (Status.FAIL, Reason.CAUGHT, "a rule", False, 3),
        (Status.INCONCLUSIVE, Reason.MET, None, False, 4),
        (Status.ERROR, Reason.MET, None, False, 5),
    ]
    run = verdicts_of(sample_run, drawn)
    words = str(tally(run)).partition(" (")[0]
    assert words == "2 of 3 thresholds pass, 1 failed without a threshold, 1 waived"
    assert [result.case for result in defects(run)] == ["case5"]


def test_a_result_is_frozen(sample_run: RunRecord) -> None:
    result: Result = results(sample_run)[0]
    with pytest.raises(AttributeError):
        result.n = 0  # type: ignore[misc]
