"""Verify recomputes a run and thereby finds every edit of its record or samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.verify import stated, verify
from harness.record import SETTLED_SINCE, RunRecord, Status
from harness.record.store import load
from tests.editing import change


def test_verify_recomputes_every_sample_and_verdict(sample: Path, sample_run: RunRecord) -> None:
    verified = verify(sample_run, sample)
    assert verified.differences == ()
    assert (verified.num_launches, verified.num_samples, verified.num_verdicts) == (19, 25, 3)
    assert verified.num_traceless == 3, "the golden samples contain no traces"


def test_a_forged_value_is_found(copy: Path) -> None:
    def faster(doc: Any) -> None:
        launch = next(x for x in doc["launches"] if x["purpose"] == "timed")
        launch["ranks"][0]["window_s"] *= 0.9

    change(copy, faster)
    assert any("window_s of rank 0" in d for d in verify(load(copy), copy).differences)


@pytest.mark.parametrize("name", ["first_loss", "last_loss", "stepping_s"])
def test_a_forged_value_of_a_rank_is_found(name: str, copy: Path) -> None:
    def other(doc: Any) -> None:
        launch = next(x for x in doc["launches"] if x["purpose"] == "timed")
        launch["ranks"][0][name] = 0.001

    change(copy, other)
    assert any(f"{name} of rank 0" in d for d in verify(load(copy), copy).differences)


def test_a_forged_verdict_is_found(copy: Path) -> None:
    change(copy, lambda doc: doc["verdicts"][0].update(value=0.999))
    assert len(verify(load(copy), copy).differences) == 1


@pytest.mark.parametrize(("schema", "wrong"), [(6, 0), (8, 1)])
def test_an_older_verdict_left_open_because_of_load_is_no_forgery(
    copy: Path, schema: int, wrong: int
) -> None:
    """Today it passes, because load can only have lowered the result. A forged PASS is still found."""

    run = load(copy)
    place, old = next((i, v) for i, v in enumerate(run.verdicts) if v.status is Status.PASS)

    def open_(doc: Any) -> None:
        doc["verdicts"][place].update(status="INCONCLUSIVE", reason="noisy_host", evidence=None)

    change(copy, open_)
    recorded = dataclasses.replace(load(copy), schema=schema)
    differences = [d for d in verify(recorded, copy).differences if old.contrast in d]
    assert len(differences) == wrong, differences


def test_edited_samples_are_found(copy: Path) -> None:
    path = next(copy.glob("launches/*-t*/rank0.npz"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (difference,) = verify(load(copy), copy).differences
    assert "samples were changed" in difference and path.parent.name in difference


def test_missing_samples_are_found(copy: Path) -> None:
    next(copy.glob("launches/*-t*/rank0.npz")).unlink()
    (difference,) = verify(load(copy), copy).differences
    assert "samples are missing" in difference


def test_a_missing_rank_is_found(copy: Path) -> None:
    def lose(doc: Any) -> None:
        launch = next(x for x in doc["launches"] if x["purpose"] == "timed" and x["arm"] == "@2")
        del launch["ranks"][1]

    change(copy, lose)
    differences = verify(load(copy), copy).differences
    assert any("wrong is ()" in d and "ranks [0] joined" in d for d in differences)


def test_truncated_samples_are_found(copy: Path) -> None:
    path = next(copy.glob("launches/*-t*/rank0.npz"))
    path.write_bytes(path.read_bytes()[:100])
    (difference,) = verify(load(copy), copy).differences
    assert "samples were changed" in difference


def test_a_forged_window_is_found(copy: Path) -> None:
    def longer(doc: Any) -> None:
        (windows,) = doc["windows"].values()
        windows["plain"]["steps"] = 99
        doc["schema"] = SETTLED_SINCE

    change(copy, longer)
    assert any(
        "but other windows follow from the pilots" in d
        for d in verify(load(copy), copy).differences
    )


def test_a_reworded_check_is_the_same_statement_and_a_changed_number_is_not() -> None:
    recorded = ["replicas: rank 1 differs by 0.5 after 12 steps"]
    assert stated(recorded) == stated(["replicas: after a difference of rank 1 by 0.5, 12 steps"])
    for other in (
        "replicas: rank 1 differs by 0.05 after 12 steps",
        recorded[0].replace("r", "R", 1),
    ):
        assert stated(recorded) != stated([other])
