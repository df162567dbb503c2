"""Every word that ``--accept`` takes is the word of a check, and checks are made in their order."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.script import launches, same_training
from harness.analysis.script.check import Checks, Worlds, of_launch, of_worlds, table
from harness.cases.script import ACCEPTABLE
from harness.record import RunRecord

WITHOUT = {"world", "steps", "count"}  # no result is valid without these


def test_each_acceptable_word_belongs_to_a_check() -> None:
    assert launches.wrong and same_training.unlike, "their modules register the checks"
    codes = {check.code for check in (*of_launch.all, *of_worlds.all)}
    assert codes - WITHOUT == {*ACCEPTABLE} and codes >= WITHOUT


def test_messages_begin_with_the_word_of_their_check(sample_run: RunRecord) -> None:
    case = sample_run.plans[0].arms[0].case
    checks = Checks[Worlds]()

    @checks("first", "something", "a mistake")
    def _(worlds: Worlds) -> Iterator[str]:
        yield "wrong" if worlds.edited else "right"

    @checks("second", "something else", "no mistake")
    def _(_: Worlds) -> Iterator[str]:
        return iter(())

    assert [*checks.failed(Worlds(case, [], [], edited=True))] == ["first: wrong"]


def test_the_table_marks_what_cannot_be_accepted() -> None:
    rows = table()[2:]
    assert len(rows) == len(of_launch.all) + len(of_worlds.all)
    assert [row for row in rows if row.startswith("| `world`")] == []
    assert any(row.startswith("| `idle` |") for row in rows)
