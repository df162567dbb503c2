"""``run compress`` prints one table of compressors from real launches."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.reading import load
from harness.interface.cli.main import main
from tests.waiting import entered, interruptible, until


def said(capsys: Any, *words: str) -> tuple[int, str, str]:
    status = main(["run", "compress", *words])
    out, err = capsys.readouterr()
    return int(status), out, err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["decoder-nano", "--cpus", "1"], "a single rank sends nothing"),
        (["decoder-nano", "--cpus", "2", "--codecs", "int9"], "did you mean 'int8'"),
        (["decoder-nano", "--cpus", "2", "--rates", "fast"], "in Mbit/s"),
        (["decoder-nano", "--cpus", "2", "--confirm", "int8"], "cannot set link rates"),
        (["decoder", "--cpus", "2"], "is not a case"),
    ],
)
def test_invalid_options_are_reported_before_any_launch(
    capsys: Any, tmp_path: Path, words: list[str], what: str
) -> None:
    status, _, err = said(capsys, *words, "--results", str(tmp_path))
    assert status == 4
    assert what in err and "try" in err
    assert not list(tmp_path.glob("runs/*/*/record.json"))


@pytest.mark.full
def test_the_table_contains_the_costs_of_every_compressor(capsys: Any, tmp_path: Path) -> None:
    words = ("decoder-nano", "--cpus", "2", "--codecs", "int8,topk", "--results", str(tmp_path))
    status, out, _ = said(capsys, *words, "--json")
    assert status == 0
    costs = {c["name"]: c for c in json.loads(out)["costs"]}
    assert set(costs) == {"dense", "bf16", "int8", "topk", "no exchange"}
    per_parameter = {name: c["bytes_per_parameter"] for name, c in costs.items()}
    assert per_parameter["dense"] == pytest.approx(4.0, rel=0.05), (
        "a ring all-reduce sends 2 (N-1)/N of 4 bytes"
    )
    assert per_parameter["bf16"] == pytest.approx(2.0, rel=0.05)
    assert per_parameter["int8"] == pytest.approx(1.016, rel=0.05)
    assert per_parameter["no exchange"] == 0
    assert costs["int8"]["encode_s"] > 0 and costs["dense"]["encode_s"] is None
    assert costs["int8"]["loss"] == pytest.approx(costs["dense"]["loss"], rel=0.05)
    assert set(costs["int8"]["pays"]) == {"dense", "bf16"} and costs["dense"]["pays"] == {}


@pytest.mark.full
def test_each_compressor_is_trained_at_every_learning_rate_of_its_grid(
    capsys: Any, tmp_path: Path
) -> None:
    words = ("decoder-nano", "--cpus", "2", "--codecs", "topk", "--tuned")
    status, out, _ = said(capsys, *words, "--results", str(tmp_path), "--json")
    assert status == 0
    (tuned,) = json.loads(out)["tuned"]
    assert (tuned["name"], tuned["optimizer"]) == ("topk", "sgd")
    assert tuned["lr"] in (0.01, 0.05, 0.25) and tuned["dense_lr"] in (0.01, 0.05, 0.25)
    assert 1 < tuned["dense_loss"] <= tuned["loss"] < 6, (
        "top-k drops gradients, so its loss must be higher"
    )


@pytest.mark.full
def test_a_model_without_a_loss_floor_is_refused(capsys: Any, tmp_path: Path) -> None:
    words = ("mlp-nano", "--cpus", "2", "--codecs", "topk", "--tuned")
    status, out, _ = said(capsys, *words, "--results", str(tmp_path))
    assert status == 4 and "no loss of mlp-nano is compared" in out


@pytest.mark.full
def test_an_interrupt_keeps_and_prints_the_measurements(tmp_path: Path) -> None:
    words = ["run", "compress", "mlp-nano", "--cpus", "2", "--codecs", "int8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    folder = until(lambda: entered(tmp_path, "timed"), 300.0)[0].parent
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "report   scaleproof report" in out
    assert not load(folder).complete, "an incomplete run can be resumed"
