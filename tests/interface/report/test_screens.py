"""The screen of a real main job: golden at 80 columns, and the lines of it in the README.

``main-job.json.gz`` is the record of one ``pytest suites/``. Set GOLDEN_SCREENS=write to accept new
screens after looking at them.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.rungs import rungs
from harness.interface.report import digest, figures, screen, tables
from harness.interface.report.headline import headline
from harness.interface.report.page.page import render
from harness.record import LaunchRecord, Reason, RunRecord, Status

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"


def shown(run: RunRecord, columns: int) -> list[str]:
    folder = Path("results/runs") / run.machine.hardware_class / run.run
    return screen.lines(run, folder, "pytest suites/", columns, page=str(folder / "report.html"))


def accepted(name: str, lines: list[str]) -> None:
    golden = GOLDEN / f"{name}.txt"
    seen = "\n".join(lines) + "\n"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        golden.write_text(seen)
    assert seen == golden.read_text()


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_a_main_job_fits_on_one_screen(main_job: RunRecord, columns: int) -> None:
    lines = shown(main_job, columns)
    if columns == 80:
        accepted("main-job-80", lines)
    assert len(lines) <= 45
    whole = (" all ", " page")  # Commands are not wrapped, because users copy them.
    assert all(len(line) <= columns for line in lines if not line.startswith(whole))
    for result in screen.shown_results(main_job):
        row = next(line for line in lines if figures.figure(result, ".2f") in line)
        assert result.reason is Reason.CAUGHT or result.bound in row


def test_every_verdict_is_printed_on_request(main_job: RunRecord) -> None:
    folder = Path("results/runs") / main_job.machine.hardware_class / main_job.run
    lines = tables.summary(main_job, folder, "pytest suites/", 100)
    accepted("main-job-every-100", lines)
    text = " ".join(" ".join(lines).split())
    assert all(v.case in text for v in main_job.verdicts)


def undecided(run: RunRecord, count: int, **fields: Any) -> RunRecord:
    """Return the run with its first requirements undecided."""
    asked = [v for v in run.verdicts if v.rule and v.reason is not Reason.CAUGHT][:count]
    still_open = [replace(v, status=Status.INCONCLUSIVE, **fields) for v in asked]
    by_name = {(v.plan, v.contrast, v.rule): v for v in still_open}
    verdicts = [by_name.get((v.plan, v.contrast, v.rule), v) for v in run.verdicts]
    return replace(run, verdicts=tuple(verdicts))


def test_a_cause_shared_by_several_verdicts_is_printed_once(main_job: RunRecord) -> None:
    """Background load of 0.8 of a core affects nine verdicts, which need one sentence and still fit
    on one screen.
    """
    loud = [replace(x, foreign_load=0.4) for x in main_job.launches]
    run = undecided(
        replace(main_job, launches=tuple(loud)), 9, reason=Reason.NOISY_HOST, doubt="load",
        detail="would pass, but noisy host: other processes may have taken 38% of the baseline's time",
    )  # fmt: skip
    lines = shown(run, 80)
    text = " ".join(" ".join(lines).split())
    assert text.count("background load of 0.8 of 2 cores during 9 of 11 thresholds") == 1
    assert text.count("noisy host") == 0 and len(lines) <= 45
    assert sum(line.endswith("INCONCLUSIVE") for line in lines) == 9


@pytest.mark.parametrize("columns", [80, 100])
def test_a_long_name_never_hides_a_figure(main_job: RunRecord, columns: int) -> None:
    """The name of a script's case contains its command."""
    command = "script:python -m training.launch --config configs/very/long/path/model.yaml/weak"
    renamed = [
        replace(plan, arms=tuple(replace(a, case=replace(a.case, strategy=command))
                                 for a in plan.arms))
        for plan in main_job.plans
    ]  # fmt: skip
    hashes = {old.case.hash: new.case.hash
              for before, after in zip(main_job.plans, renamed, strict=True)
              for old, new in zip(before.arms, after.arms, strict=True)}  # fmt: skip
    plans = {old.hash: new.hash for old, new in zip(main_job.plans, renamed, strict=True)}
    run = replace(
        main_job, plans=tuple(renamed), launches=(),
        verdicts=tuple(replace(v, case_hash=hashes.get(v.case_hash, ""),
                               plan=plans.get(v.plan, "")) for v in main_job.verdicts),
    )  # fmt: skip
    lines = shown(run, columns)
    rows = [line for line in lines if line.endswith(("PASS", "INCONCLUSIVE"))]
    assert len(rows) >= 11 and all(len(row) <= columns for row in rows)
    for v in (v for v in run.verdicts if v.rule and v.value is not None):
        figure = f"{v.value:.2f} [{v.low:.2f}, {v.high:.2f}]"
        assert any(figure in row and v.bound in row for row in rows), figure


def test_passing_verdicts_beyond_one_screen_are_counted(main_job: RunRecord) -> None:
    asked = [v for v in main_job.verdicts if v.rule and v.reason is not Reason.CAUGHT]
    many = [replace(v, contrast=f"{v.contrast}-{i}") for i in range(8) for v in asked]
    many[-1] = replace(many[-1], status=Status.FAIL, reason=Reason.NOT_MET, detail="too slow")
    lines = shown(replace(main_job, verdicts=tuple(many)), 80)
    assert len(lines) <= 45 and any(line.endswith("FAIL") for line in lines)
    assert any(line.startswith(" and ") and "PASS (--every)" in line for line in lines)


def test_an_error_without_a_rule_is_not_omitted(main_job: RunRecord) -> None:
    """The exit status is 11, so the screen must not say PASS."""
    unruled = next(v for v in main_job.verdicts if not v.rule)
    broken = replace(unruled, status=Status.ERROR, reason=Reason.INCORRECT, value=None,
                     detail="step1_gradient on rank 1: 2, allowed 0")  # fmt: skip
    verdicts = tuple(broken if v is unruled else v for v in main_job.verdicts)
    lines = shown(replace(main_job, verdicts=verdicts), 80)
    text = " ".join(" ".join(lines).split())
    assert "= ERROR: 11 of 11 thresholds pass, 1 failed without a threshold" in text
    assert any(line.endswith("ERROR") for line in lines) and "step1_gradient on rank 1" in text


def test_a_missed_control_is_never_summarized_as_pass(main_job: RunRecord) -> None:
    """The run fails even if no rule names the control."""
    caught = next(v for v in main_job.verdicts if v.reason is Reason.CAUGHT)
    missed = replace(caught, rule=None, status=Status.FAIL, reason=Reason.NOT_CAUGHT,
                     detail="the byte checks did not detect a case that trains incorrectly on purpose")  # fmt: skip
    verdicts = tuple(missed if v is caught else v for v in main_job.verdicts)
    lines = shown(replace(main_job, verdicts=verdicts), 80)
    assert lines[1].startswith(" FAIL: 11 of 11 thresholds pass, 1 failed without a threshold")
    assert any(line.endswith("FAIL") for line in lines)


def test_an_incorrect_training_run_has_no_estimated_figure(main_job: RunRecord) -> None:
    """The speed of its calibration launches means nothing; a case cut by the time budget shows
    their estimate.
    """
    asked = next(v for v in main_job.verdicts if v.metric == "efficiency" and v.rule)
    bare = dict(value=None, low=None, high=None, n=0)
    wrong = replace(asked, status=Status.ERROR, reason=Reason.INCORRECT, detail="loss", **bare)
    cut = replace(asked, status=Status.INCONCLUSIVE, reason=Reason.OUT_OF_TIME, **bare)
    for verdict, hinted in ((wrong, False), (cut, True)):
        verdicts = tuple(verdict if v is asked else v for v in main_job.verdicts)
        lines = shown(replace(main_job, verdicts=verdicts), 80)
        (row,) = [line for line in lines if line.endswith(str(verdict.status))]
        assert ("estimated" in row) is hinted, row


def test_an_impossible_figure_without_a_rule_is_printed_once_as_an_error(
    main_job: RunRecord,
) -> None:
    plan = next(p for p in main_job.plans if any(v.plan == p.hash and v.rule and v.value
                                                 for v in main_job.verdicts))  # fmt: skip
    mine = [replace(v, rule=None, status=Status.ERROR, reason=Reason.IMPLAUSIBLE, detail="1.3 of linear")
            for v in main_job.verdicts if v.plan == plan.hash]  # fmt: skip
    run = replace(main_job, plans=(plan,), verdicts=tuple(mine))
    rows = [line for line in shown(run, 80) if line.endswith(("ERROR", "RECORDED"))]
    assert rows and not any(row.endswith("RECORDED") for row in rows)


def test_every_form_counts_alike(main_job: RunRecord) -> None:
    """The headline, the CI summary, the page and JSON contain the same count."""
    run = undecided(main_job, 2, reason=Reason.SPANS_BOUND, more=6, detail="spans")
    count = "9 of 11 thresholds pass, 2 inconclusive"
    assert count in headline(run) and count in digest.markdown(run)[0]
    assert count in digest.document(run)["headline"]
    assert count in " ".join(" ".join(tables.summary(run, Path("x"), "again")).split())
    chips = re.search(r'<div class="chips">(.*?)</div>', render(run), re.S)
    assert chips is not None
    matches = re.findall(r'">(\d+) ([\w ]+)</span>', chips[1])
    assert {("9", "passed"), ("2", "inconclusive"), ("1", "negative control detected")} <= {
        *matches
    }


def test_the_readme_shows_that_screen_and_its_page() -> None:
    """``python scripts/pictures.py`` draws both pictures from the golden record and screen."""
    readme = (ROOT / "README.md").read_text()
    for name in ("docs/screen.png", "docs/report.png"):
        assert f"]({name})" in readme and (ROOT / name).is_file()


def test_an_unexplained_loss_is_reported(main_job: RunRecord) -> None:
    """The profiles were faster and lost nothing, but the timed launches did, which is reported."""

    def quick(launch: LaunchRecord) -> LaunchRecord:
        assert launch.budget is not None
        ranks = []
        for rank in launch.budget.ranks:
            terms = {t: tuple(n // 10 for n in ns) for t, ns in rank.terms.items()}
            step_ns = tuple(map(sum, zip(*terms.values(), strict=True)))
            ranks.append(replace(rank, step_ns=step_ns, terms=terms))
        return replace(launch, budget=replace(launch.budget, ranks=tuple(ranks)))

    rung = min(rungs(main_job), key=lambda r: r.efficiency)
    assert rung.efficiency < screen.KEEPS
    case = rung.arm.case.hash
    launches = [quick(x) if x.budget and x.case == case else x for x in main_job.launches]
    text = "\n".join(shown(replace(main_job, launches=tuple(launches)), 140))
    (line,) = (x for x in text.splitlines() if "not explained: profiled steps took" in x)
    assert rung.arm.case.family in line
