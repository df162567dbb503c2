"""A run in a notebook: the output equals the record, and a manipulated run is marked."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from harness import frames, notebook
from harness.base.errors import SpecError


@pytest.fixture(scope="module")
def run(sample: Path) -> notebook.NotebookRun:
    return notebook.read(sample)


def test_every_row_of_a_frame_names_its_case(sample: Path) -> None:
    cases = {a.case.id: a.case for p in notebook.read(sample).record.plans for a in p.arms}
    for table in ("launches", "steps", "points", "verdicts", "budgets"):
        frame = getattr(frames, table)([sample, sample.with_name("ddp-nano-again")])
        assert set(frame.case) <= set(cases), table
        assert all(cases[c].strategy == s for c, s in zip(frame.case, frame.strategy, strict=True))
        assert set(frame.purpose) <= {"gate", "pilot", "reference", "timed", "profile"}, table


def test_a_run_is_shown_with_its_figures_and_escaped(
    run: notebook.NotebookRun, sample: Path
) -> None:
    shown = run._repr_html_()
    for v in run.record.verdicts:
        assert v.case in shown and f"{v.value:.4g}" in shown
    assert "NOT VERIFIED" not in shown
    assert run.result("ddp").result is not None
    assert "needs" not in run.result("ddp")._repr_html_()
    compared = run.compare(sample.with_name("ddp-nano-again"))
    assert f"{compared.comparison.mean:.3f}" in compared._repr_html_()
    odd = notebook.ShownResult(result=run.result("ddp").result, doubt="<script>")
    assert "<script>" not in odd._repr_html_() and "&lt;script&gt;" in odd._repr_html_()
    with pytest.raises(SpecError, match="no result has a case whose id contains 'llama'"):
        run.result("llama")


def test_an_unverified_run_is_marked(sample: Path, tmp_path: Path) -> None:
    shutil.copytree(sample, tmp_path / "run")
    (tmp_path / "run/chain.jsonl").unlink()
    run = notebook.read(tmp_path / "run")
    assert "NOT VERIFIED: it has no chain" in run._repr_html_()
    assert "NOT VERIFIED" in run.result("ddp")._repr_html_()
    assert "NOT VERIFIED" in run.compare(sample)._repr_html_()


def test_a_plot_shows_every_world_size_and_its_bound(
    run: notebook.NotebookRun, tmp_path: Path
) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(SpecError, match="matplotlib"):
            run.plot()
        return
    drawn = run.plot().figure.axes[0].get_lines()
    at = {(float(x), round(float(y), 6)) for line in drawn for x, y in line.get_xydata()}
    for v in run.record.verdicts:
        if v.metric == "efficiency" and v.against == "plain" and v.value is not None:
            assert any(abs(y - v.value) < 0.02 for _, y in at)
    rules = {t.name: t.at_least for t in run.record.thresholds}
    asked = {rules[v.rule] for v in run.record.verdicts if v.rule}
    assert asked and {(2.0, bound) for bound in asked} <= at, (
        "the plot must contain the bounds of two ranks"
    )
    for kind in notebook.KINDS:
        assert run.plot(kind).figure.axes
    run.plot().save(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    with pytest.raises(SpecError, match="no plot 'pie'"):
        run.plot("pie")


@pytest.mark.full
def test_the_notebook_in_the_docs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells run unchanged and in order, and the committed notebook contains their output."""
    pytest.importorskip("matplotlib")
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    cells = json.loads((root / "docs/notebook.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in code:
        assert cell["execution_count"] and all(o["output_type"] != "error" for o in cell["outputs"])
        exec("".join(cell["source"]), names)
    assert sum("image/png" in str(cell["outputs"]) for cell in code) >= 3
