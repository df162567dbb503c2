"""Predictions from the number of ranks alone contain what was measured, as often as they claim."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from benchmarks.foresight.curves import scores
from harness.features.foresight.curve import curves, extrapolate, ladders
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.prediction import predict
from harness.features.foresight.published.table import PublishedTable, read

#: A sweep of images per second inside a node, as a user would write it.
SMALL = """| GPUs | images/s |
|---|---|
| 1 | 400 |
| 2 | 790 |
| 4 | 1560 |
| 8 | 3050 |
"""


def table(folder: Path, text: str) -> PublishedTable:
    path = folder / "sweep.md"
    path.write_text(text)
    (single,) = read(path)
    assert isinstance(single, PublishedTable), single
    return single


def test_a_small_sweep_without_parameters_is_predicted_from_its_ranks(tmp_path: Path) -> None:
    made = predict(table(tmp_path, SMALL), learned())
    assert made.refused == () and len(made.predicted) == 2
    for size in made.predicted:
        assert size.regime is Regime.CURVE and size.covered and abs(size.miss or 0.0) < 0.02


def test_one_gpu_says_little_about_eight() -> None:
    """The interval from one GPU is far wider than the interval from two sizes."""
    alone = extrapolate([(1, 400.0)], 8, 8)
    of_two = extrapolate([(1, 400.0), (2, 395.0)], 8, 8)
    assert alone.high - alone.low > 1.5 * (of_two.high - of_two.low)
    assert 0.6 < alone.low < 0.8 and 0.95 < alone.high < 1.05


def test_four_in_five_sizes_of_other_families_lie_in_the_interval() -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in list(scores())[2:]]
    sizes = [int(row[3]) for row in rows]
    inside = [float(row[7].split()[0]) for row in rows]
    of_all = sum(n * share for n, share in zip(sizes, inside, strict=True)) / sum(sizes)
    assert 75 <= of_all <= 85 and all(68 <= share <= 92 for share in inside)


def test_a_family_does_not_predict_itself() -> None:
    for family in list(ladders())[:3]:
        assert curves(family)[0].weights.tolist() != curves()[0].weights.tolist()


@given(
    st.lists(st.floats(50, 100), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([1, 4, 8]),
)
def test_intervals_grow_with_the_distance_and_contain_the_prediction(
    rates: list[float], further: int, per_node: int
) -> None:
    sizes = [(1 << i, rate) for i, rate in enumerate(rates)]
    near, far = (extrapolate(sizes, 1 << (len(rates) + i), per_node) for i in (0, further))
    for seen in (near, far):
        assert seen.low < seen.efficiency < seen.high
    assert far.high / far.low > near.high / near.low


@pytest.mark.parametrize("unit", ["Step time (ms)", "s/it"])
def test_steps_that_become_shorter_are_strong_scaling(tmp_path: Path, unit: str) -> None:
    rows = "\n".join(f"| {n} | {t} |" for n, t in ((1, 100), (2, 52), (4, 28)))
    made = predict(table(tmp_path, f"| GPUs | {unit} |\n|---|---|\n{rows}\n"), learned())
    assert any("(strong scaling)" in note for note in made.table.notes)
    (refused,) = made.refused
    assert "trainable_params" in refused.why and made.predicted == ()
