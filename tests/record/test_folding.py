"""A record and its chain as one: what was measured after the record was written is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.analysis.judging import pairs as paired
from harness.measure.blocks import missing
from harness.measure.resume import unfinished
from harness.record import SCHEMA, Purpose
from harness.record.store import load
from tests.editing import change


def test_resume_keeps_everything_and_takes_up_what_only_the_chain_knows(copy: Path) -> None:
    """The program was killed in the third turn, after its record was written for the last time."""
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


def test_an_interrupted_block_is_finished_launch_by_launch(copy: Path) -> None:
    """Whatever was seen before the interrupt counts, so that stopping gains nothing."""
    run = load(copy)
    for seen in range(len(run.launches)):
        half = dataclasses.replace(run, launches=run.launches[:seen])
        held = SimpleNamespace(timed=lambda plan, half=half: paired.timed(half, plan, None))
        (plan,) = run.plans
        slots = [x for b in run.blocks for x in missing(held, plan, b)]  # type: ignore[arg-type]
        again = [(turn, arm.name) for turn, arms in slots for arm in arms]
        before = [(x.turn, x.arm) for x in half.launches if x.purpose is Purpose.TIMED]
        every = [(x.turn, x.arm) for x in run.launches if x.purpose is Purpose.TIMED]
        assert before + again == every
