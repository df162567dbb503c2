"""In every output, a status and the figure and interval beside it belong to the same verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.judging.question import bias
from harness.analysis.judging.verdicts import conclude, verdicts
from harness.analysis.ladder import ladder_rows
from harness.analysis.results import result_of
from harness.features.site.chart import ChartPoint, chart
from harness.features.site.entries import entry_of
from harness.interface.report import screen, tables
from harness.interface.report.headline import headline
from harness.record import SCHEMA, RunRecord, Status, Verdict
from tests.analysis.judging.test_conclusion import GOOD, RULE, question


def today(run: RunRecord) -> RunRecord:
    """Return the record judged with today's rules."""
    run = replace(run, schema=SCHEMA)
    return replace(run, verdicts=verdicts(run))


def test_a_card_of_the_site_shows_one_verdict(main_job: RunRecord) -> None:
    run = today(main_job)
    verdicts_ = {
        (v.case, v.metric, v.against, v.value, v.low, v.high, v.counts) for v in run.verdicts
    }
    figures = entry_of(run, "run", "", "").cases
    judged = [f for f in figures if f.metric]
    assert judged
    for f in judged:
        assert (f.case, f.metric, f.against, f.value, f.low, f.high, f.status) in verdicts_
    ideal = next(f for f in judged if f.metric == "efficiency_of_ideal")
    assert f"{ideal.value:.2f} [" in ideal.text and "efficiency_of_ideal v " in ideal.text


def test_a_row_of_the_scaling_table_has_no_verdict_of_another_metric(main_job: RunRecord) -> None:
    run = today(main_job)
    rows = [row for plan in run.plans for row in ladder_rows(run, plan)]
    bounded = [row for row in rows if row.result is not None and row.result.bound]
    assert bounded
    for row in bounded:
        assert row.result is not None
        assert (row.result.metric, row.result.against) in {
            (metric, row.point.against) for metric in ("efficiency", "speedup")
        }
        if row.result.metric == "efficiency":
            assert row.interval == (row.result.low, row.result.high)


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize("name", ["sample_run", "main_job"])
def test_the_headline_is_a_row_of_the_screen(
    request: pytest.FixtureRequest, name: str, ruled: bool
) -> None:
    run = request.getfixturevalue(name)
    run = today(run if ruled else replace(run, thresholds=()))
    quoted = re.search(
        r"(\S+): scaling efficiency(?: v \w+)? (\d+)% \[(\d+)%, (\d+)%\]", headline(run)
    )
    assert quoted is not None, headline(run)
    family, *percents = quoted.groups()
    value, low, high = (float(percent) / 100 for percent in percents)
    shown = "\n".join(screen.lines(run, Path("RUN"), "again", 140))
    rows = re.findall(rf"{re.escape(family)}\S*@\S+.* ([\d.]+) \[([\d.]+), ([\d.]+)\]", shown)
    figures = [[float(figure) for figure in row] for row in rows]
    assert any([value, low, high] == pytest.approx(row, abs=0.006) for row in figures), shown


def _widened(run: RunRecord, factor: float) -> Verdict:
    asked = question(GOOD, caveats=(bias(factor, "others used the cores"),))
    return conclude(asked, RULE, replace(run, schema=SCHEMA))


def test_the_printed_interval_is_the_judged_one(sample_run: RunRecord) -> None:
    alone = conclude(question(GOOD), RULE, replace(sample_run, schema=SCHEMA))
    assert alone.status is Status.PASS and alone.widened == ""
    held = _widened(sample_run, 0.98)
    open_ = _widened(sample_run, 0.8)
    assert (held.status, open_.status) == (Status.PASS, Status.INCONCLUSIVE)
    for verdict, factor in ((held, 0.98), (open_, 0.8)):
        assert verdict.low == pytest.approx(alone.low * factor) and verdict.widened == "load"
        assert (verdict.value, verdict.high) == (alone.value, alone.high)
        (line, *_) = tables.verdict_line(result_of(sample_run, verdict), 200)
        assert f"[{verdict.low:.3f}, {verdict.high:.3f}] load" in line
    assert held.low > 0.8 > open_.low, "the interval printed with PASS must meet the bound"


def test_an_interval_beyond_the_axis_of_a_chart_is_marked() -> None:
    def drawn(low: float, high: float) -> str:
        point = ChartPoint(value=0.6, low=low, high=high, status=Status.PASS, link="", text="0.6")
        return str(chart([point, replace(point, value=0.62)], "efficiency", ("a", "b")))

    assert drawn(0.59, 0.63).count("beyond") == 0
    assert drawn(0.59, 1.76).count('class="beyond"') == 2
    assert drawn(0.21, 1.76).count('class="beyond"') == 4
