"""``report advice`` lists where a run lost time, and with --try measures what helps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.choices import trials
from harness.analysis.timeline.advice import Remedy
from harness.base.documents import from_doc, to_doc
from harness.interface.cli.main import main
from harness.record import RunRecord
from harness.record.store import load, save

BETTER = Remedy(name="paced.step_ms=16", change={"paced.step_ms": 16.0})
WORSE = Remedy(name="paced.step_ms=32", change={"paced.step_ms": 32.0}, alike=False)


def trusted(sample: Path, to: Path, **case: Any) -> Path:
    """Return a copy of the sample whose profiles count as undisturbed."""
    shutil.copytree(sample, to)
    doc = to_doc(load(sample))
    for x in doc["launches"]:
        x.update(perturbation=1.0, perturbation_low=1.0)
    save(from_doc(RunRecord, doc), to)
    return to


def test_large_terms_are_listed_with_what_may_help(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trusted(sample, tmp_path / "run")
    assert main(["report", "advice", str(run), "--json"]) == 1, "what is edited does not verify"
    document = json.loads(capsys.readouterr().out)
    growth = [loss["excess_ns"] for loss in document["losses"]]
    assert growth == sorted(growth, reverse=True) and document["tried"] == []
    transfer = next(x for x in document["losses"] if x["term"] == "exposed_transfer")
    assert {"ddp.bucket_cap_mb=100", "micro_batch=16"} <= {r["name"] for r in transfer["remedies"]}
    main(["report", "advice", str(run)])
    assert "exposed transfer" in capsys.readouterr().out


def test_a_profile_that_is_not_trusted_advises_nothing(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "advice", str(sample)]) == 4
    assert "cannot be used" in capsys.readouterr().err
    assert main(["report", "advice", str(sample), "--case", "fsdp"]) == 4
    assert "has 'fsdp' in its name" in capsys.readouterr().err


@pytest.mark.full
def test_remedies_are_measured_and_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated compute with a schedule has known step times."""
    monkeypatch.delenv("SCALEPROOF_NO_TIMELINE")
    words = ["--cpus", "1", "--no-fabric", "--results", str(tmp_path)]
    case = ["ddp/paced-small/weak", "--set", "paced.mode=schedule", "--set", "paced.step_ms=24",
            "--set", "paced.noise=0"]  # fmt: skip
    main(["run", *case, *words])
    (record,) = tmp_path.glob("runs/*/*/record.json")

    def two(*_: Any) -> Iterator[Remedy]:
        yield from (BETTER, WORSE)

    monkeypatch.setattr(trials, "remedies", two)
    monkeypatch.setattr(trials, "LARGE", -10.0)  # every loss of the profile counts as large
    monkeypatch.setattr(trials, "BLOCKS", 1)
    capsys.readouterr()
    assert (
        main(
            ["report", "advice", str(record.parent), "--try", "--results", str(tmp_path), "--json"]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    gains = {t["remedy"]: t["ratio"] for t in document["tried"]}
    assert gains == pytest.approx({BETTER.name: 1.5, WORSE.name: 0.75}, rel=0.05)
    assert main(["verify", document["run"]]) == 0
