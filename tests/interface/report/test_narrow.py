"""Narrow screens, such as CI logs: rows are correct and contain what decides the verdict."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from harness.cases import Device, Site
from harness.interface.report import timeline
from harness.interface.report.tables import scaling_table
from harness.interface.report.text import Column, table
from harness.record import RunRecord, Term

WIDTHS = [60, 72, 80, 100, 140, 200]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_verdict_is_never_without_its_bound(sample_run: RunRecord, width: int) -> None:
    """The row `pipeline 2cpu 0.460 [0.352, 0.602] PASS` would hide that the bound 0.55 is on
    another figure.
    """
    lines = scaling_table(sample_run, width)
    assert max(map(len, lines)) <= max(width, 80)
    judged = [line for line in lines if "PASS" in line.split()]
    assert judged and all(">=" in line for line in judged)
    assert any("ddp/decoder-nano/weak" in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("model", ["mlp-nano", "paced-small"])
def test_the_printed_terms_add_up_to_the_printed_loss(width: int, model: str) -> None:
    """At 80 columns, compute and transfer, the largest terms, must not be missing in the sum."""
    terms = dict(zip(Term, (5.8, 1.2, 0.5, 0.1, -0.1, 0.4, 0.3, 0.2, 0.1, 0.6), strict=False))
    lost = sum(terms.values())
    knobs = {"paced.mode": "schedule", "paced.plant": "2:0.85"} if model == "paced-small" else {}
    case = Site(device=Device.CPU, backend="gloo", nodes=(2,)).case(f"ddp/{model}", knobs=knobs)
    losses = SimpleNamespace(
        excess_ns={t: Fraction(round(10 * ms), 10) * 10**6 for t, ms in terms.items()},
        ideal_ns=Fraction(40 * 10**6), step_ns=Fraction(round(1e6 * (40 + lost))),
        ranks=2, speedup=Fraction(17, 10),
    )  # fmt: skip
    rung: Any = SimpleNamespace(arm=SimpleNamespace(case=case), losses=losses, perturbation=1.01)
    header, *rows = timeline._table([rung], width)
    header = header.replace("ranks lost", "ranks-lost")
    first = next(row for row in rows if "2cpu" in row.split()).replace(" of ", "-of-")
    assert any(f"ddp/{model}" in row for row in rows)
    cells = dict(zip(header.split(), first.split(), strict=False))
    of_terms = {timeline.head(t) for t in terms} | {"rest"}
    shown = sum(float(cells[name]) for name in header.split() if name in of_terms)
    assert shown == pytest.approx(float(cells["lost"]), abs=0.11)
    assert timeline.head(Term.COMPUTE) in cells, "the largest term must be the last to be omitted"


@given(
    st.lists(st.lists(st.text("abc", min_size=1, max_size=9), max_size=30), min_size=1, max_size=4),
    st.integers(40, 120),
)
def test_a_column_of_sentences_continues_below(sentences: list[list[str]], width: int) -> None:
    """No word is lost, no line is too wide, and the numbers in front remain."""
    columns = [
        Column[list[str]]("ms", 5, lambda row: str(len(row))),
        Column("may help", 9, " ".join, left=True, prose=True),
    ]
    header, *lines = table(columns, sentences, width)
    assert header.split() == ["ms", "may", "help"] and all(len(line) <= width for line in lines)
    expected = [word for row in sentences for word in (*row, str(len(row)))]
    assert sorted(" ".join(lines).split()) == sorted(expected)
