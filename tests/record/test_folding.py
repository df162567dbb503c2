"""A record is completed from its chain with what was measured after the record was written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.judging import contrast_data as paired
from harness.base.errors import RecordError
from harness.host.environment import changes_speed
from harness.measure import run as resume
from harness.measure.orders import missing_timed
from harness.measure.run import unfinished
from harness.record import SCHEMA, Purpose, RunRecord, chain
from harness.record.chain import Kind, begun, folded
from harness.record.store import load
from tests.editing import change


def test_resume_recovers_launches_that_only_the_chain_contains(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was killed in the third turn, after the last write of its record."""
    monkeypatch.setattr(resume, "software", lambda: load(copy).software)
    # The sample's machine set none of these variables, and resuming with other ones is refused.
    for name in filter(changes_speed, list(os.environ)):
        monkeypatch.delenv(name)
    lines = (copy / "chain.jsonl").read_text().splitlines()
    places = [i for i, line in enumerate(lines) if '"kind":"launch"' in line]
    kept = [i for i in places if '"purpose":"timed"' in lines[i]][6]
    (copy / "chain.jsonl").write_text("".join(f"{x}\n" for x in lines[: kept + 1]) + lines[-1][:40])

    def early(doc: Any) -> None:
        doc.update(complete=False, launches=doc["launches"][:5], blocks=[], windows={})
        doc["schema"] = SCHEMA

    change(copy, early)
    run = unfinished(copy, load(copy).machine)
    assert len(run.launches) == places.index(kept) + 1
    assert len(run.blocks) == 2 and run.windows
    assert sum(x.purpose is Purpose.TIMED for x in run.launches) == 7


def test_resume_measures_only_the_missing_launches_of_a_block(copy: Path) -> None:
    """Launches before the interrupt count, so stopping a run cannot improve its result."""
    run = load(copy)
    for seen in range(len(run.launches)):
        half = dataclasses.replace(run, launches=run.launches[:seen])
        held = SimpleNamespace(timed=lambda plan, half=half: paired.timed(half, plan, None))
        (plan,) = run.plans
        slots = [x for b in run.blocks for x in missing_timed(held, plan, b)]  # type: ignore[arg-type]
        again = [(turn, arm.name) for turn, arms in slots for arm in arms]
        before = [(x.turn, x.arm) for x in half.launches if x.purpose is Purpose.TIMED]
        every = [(x.turn, x.arm) for x in run.launches if x.purpose is Purpose.TIMED]
        assert before + again == every


def test_a_run_is_rebuilt_from_any_prefix_of_its_chain(sample: Path, sample_run: RunRecord) -> None:
    """A prefix of the chain contains the launches and blocks that it had recorded, and no verdict."""
    first, *later = chain.read(sample)
    sealed = dataclasses.replace(first, body={**first.body, "schema": SCHEMA, "facts": {}})
    links = (sealed, *later)
    for end in range(1, len(links) + 1):
        known = links[:end]
        run = folded(begun(known, str(sample)), known)
        launches = sum(link.kind is Kind.LAUNCH for link in known)
        blocks = sum(link.kind is Kind.BLOCK for link in known)
        assert run.launches == sample_run.launches[:launches]
        assert run.blocks == sample_run.blocks[:blocks]
        assert not run.verdicts and run.head == known[-1].hash
    assert run.plans == sample_run.plans and run.windows == sample_run.windows


def test_a_complete_record_is_not_changed(sample: Path, sample_run: RunRecord) -> None:
    assert folded(sample_run, chain.read(sample)[:3]) is sample_run


def test_a_chain_without_a_beginning_is_one_clear_error(sample: Path) -> None:
    for links in ((), chain.read(sample)[1:]):
        with pytest.raises(RecordError, match="does not begin with a run"):
            begun(links, str(sample))
