"""Data that is missing in a trace must not become a share of 0, which would pass a bound."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline import close as closing
from harness.analysis.timeline.close import budget_of, close
from harness.base.errors import ScaleproofError
from harness.record import RankRecord
from harness.record.store import load
from tests.analysis.timeline.test_close import rank_of

ROOT = Path(__file__).parents[3]


def test_undivided_communication_has_no_share_of_waiting() -> None:
    twice = replace(rank_of(1, 0), ops=rank_of(1, 0).ops * 2)
    budget = close([rank_of(0, 0), twice], {}, 0).budget
    assert budget.wait_share is None
    assert budget.bubble_share is None
    assert budget.exposed_share > 0


def test_without_compute_there_is_no_stage_imbalance() -> None:
    idle = [replace(rank_of(r, 0), compute=rank_of(r, 0).launch) for r in (0, 1)]
    assert close(idle, {}, 0).budget.stage_imbalance is None


@pytest.fixture
def launch(tmp_path: Path) -> tuple[Path, list[RankRecord]]:
    """Return a folder with recorded traces of two ranks, as a launch leaves them, and the rank
    records.
    """
    folder = tmp_path / "launches" / "x"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        source = ROOT / "tests" / "analysis" / "timeline" / "recorded" / f"ddp-rank{rank}.json.gz"
        shutil.copy(source, folder / f"rank{rank}.trace.json.gz")
    run = load(ROOT / "tests" / "golden" / "samples" / "ddp-nano")
    ranks = next(x for x in run.launches if x.budget and len(x.ranks) == 2).ranks
    still = [replace(r, clock_offset_ns=0, clock_half_ns=0) for r in ranks]
    return tmp_path, still


def rewrite(folder: Path, edit: Any) -> None:
    path = folder / "launches" / "x" / "rank1.trace.json.gz"
    doc = json.loads(gzip.decompress(path.read_bytes()))
    doc["traceEvents"] = edit(doc["traceEvents"])
    path.write_bytes(gzip.compress(json.dumps(doc, indent=1).encode()))


def test_complete_traces_are_accepted(launch: tuple[Path, list[RankRecord]]) -> None:
    assert budget_of(launch[0], "x", launch[1], 3, True).steps == 3


def test_reading_traces_in_parallel_gives_the_same_budget(
    launch: tuple[Path, list[RankRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = budget_of(launch[0], "x", launch[1], 3, True)
    monkeypatch.setattr(closing, "MANY", 2)
    assert budget_of(launch[0], "x", launch[1], 3, True) == in_turn
    (launch[0] / "launches" / "x" / "rank1.trace.json.gz").unlink()
    with pytest.raises(ScaleproofError, match="rank1"):
        budget_of(launch[0], "x", launch[1], 3, True)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda e: [x for x in e if "gloo:" not in x["name"]], "has no communication"),
        (lambda e: [x for x in e if "ProfilerStep#7" not in x["name"]], "has 2 steps"),
        (lambda e: [x for x in e if "ProfilerStep" not in x["name"]], "has 1 steps"),
    ],
)
def test_a_trace_without_communication_or_steps_is_refused(
    launch: tuple[Path, list[RankRecord]], edit: Any, says: str
) -> None:
    rewrite(launch[0], edit)
    with pytest.raises(ScaleproofError, match=says):
        budget_of(launch[0], "x", launch[1], 3, True)


@pytest.mark.full
def test_a_truncated_or_missing_trace_is_refused(launch: tuple[Path, list[RankRecord]]) -> None:
    path = launch[0] / "launches" / "x" / "rank1.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ScaleproofError, match="cut short"):
        budget_of(launch[0], "x", launch[1], 3, True)
    path.unlink()
    with pytest.raises(ScaleproofError, match="cannot be read"):
        budget_of(launch[0], "x", launch[1], 3, True)
