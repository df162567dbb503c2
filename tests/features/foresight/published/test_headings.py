"""Headings as projects write them mean the same fields for ``predict`` and ``verify table``."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.foresight.claims import ClaimedColumn, column
from harness.features.foresight.published.headings import field_name
from harness.features.foresight.published.measures import unit_of
from harness.features.foresight.published.reading import NUMBERS
from harness.interface.cli.main import main

#: Headings of torchtitan, Megatron, Transformers, NVIDIA, MLPerf and others.
SIZES = (
    "GPUs", "#GPUs", "Number of GPUs", "GPU count", "n_gpu", "num_gpus", "TPUs", "NPUs", "GCDs",
    "processes", "chips", "accelerators", "workers", "**GPUs**", "No. of GPUs", "devices",
)  # fmt: skip
RATES = (
    "TPS/GPU", "tps", "wps", "seq/s", "it/s", "s/it", "ms/step", "QPS", "tokens/sec/GPU", "img/s",
    "Throughput (sequences/sec)", "Throughput - TF32 (sequences/sec)", "TFLOP/s/GPU",
    "elapsed time per iteration (ms)", "Model TFLOP / sec / GPU", "train_samples_per_second",
    "Throughput - FP32 (tok/s)", "Training throughput (images/s)", "steps/s", "samples/sec",
)  # fmt: skip


@pytest.mark.parametrize("heading", SIZES)
def test_a_size_is_read_by_both_commands(heading: str) -> None:
    assert column(heading) is ClaimedColumn.RANKS
    assert field_name(heading).lower() in NUMBERS["ranks"]


@pytest.mark.parametrize("heading", RATES)
def test_a_rate_is_read_by_both_commands(heading: str) -> None:
    assert column(heading) in (ClaimedColumn.TIME, ClaimedColumn.THROUGHPUT)
    assert unit_of(field_name(heading)) is not None


#: Table -> whether it is honest, and the number of rows that are checked.
TABLES = {
    "two methods": (
        "Method,GPUs,tokens/s/GPU,Speedup\nDDP,8,1000,1.0\nDDP,16,980,1.96\nFSDP,8,700,1.0\n"
        "FSDP,16,690,1.97\n", True, 4,
    ),
    "a wrong method": (
        "Method,GPUs,tokens/s/GPU,Speedup\nDDP,8,1000,1.0\nDDP,16,980,1.96\nFSDP,8,700,1.0\n"
        "FSDP,16,690,2.40\n", False, 3,
    ),
    "two precisions": (
        "GPUs,Throughput - FP32 (tok/s),Throughput - FP16 (tok/s),Strong Scaling - FP32,"
        "Strong Scaling - FP16\n1,100,300,1,1\n8,700,1800,7.0,6.0\n", True, 4,
    ),
    "a wrong precision": (
        "GPUs,Throughput - FP32 (tok/s),Throughput - FP16 (tok/s),Strong Scaling - FP32,"
        "Strong Scaling - FP16\n1,100,300,1,1\n8,700,1800,7.0,7.5\n", False, 3,
    ),
    "strong scaling": (
        "GPUs,Batch size / GPU,img/s,Speedup\n1,64,100,1\n4,16,390,3.9\n8,8,700,7.0\n", True, 3,
    ),
    "variants and batches": (
        "GPUs,Batch,Throughput - A,Throughput - B,Strong scaling - A,Strong scaling - B\n"
        "1,8,100,200,1,1\n8,8,700,1200,7,6\n1,16,110,240,1,1\n8,16,825,1560,7.5,6.5\n", True, 8,
    ),
    "swapped variants": (
        "GPUs,Throughput - A,Throughput - B,Weak scaling - B,Weak scaling - A\n1,100,200,1,1\n"
        "8,700,1200,7.00,6.00\n", False, 2,
    ),
    "a space in thousands": ("GPUs,img/s,Speedup\n1,29 911,1\n8,181 384,6.06\n", True, 2),
    "a truncated speedup": ("GPUs,img/s,Speedup\n1,46.88,1\n8,298.91,6.37\n", True, 2),
    "a loss beside": ("GPUs,img/s,Loss,Speedup\n1,100,2.31,1\n4,390,2.29,3.9\n", True, 2),
}  # fmt: skip


@pytest.mark.parametrize(("text", "honest", "consistent"), TABLES.values(), ids=TABLES)
def test_ladders_of_one_table_are_checked_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, honest: bool, consistent: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert main(["verify", "table", str(path)]) == (0 if honest else 1)
    assert f"{consistent} consistent" in capsys.readouterr().out


def test_a_readme_is_read_with_its_tables_that_are_no_ladders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    path.write_text(
        "# Options\n\n| option | default |\n|---|---|\n| lr | 0.1 |\n\n## Results on A100\n\n"
        "| Number of GPUs | img/s | speedup |\n|---|---|---|\n| 1 | 100 | 1 |\n| 8 | 760 | 7.6 |\n"
    )
    assert main(["verify", "table", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2 consistent" in shown and "1 other table without a number of ranks" in shown


def test_a_table_that_cannot_be_read_costs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    path.write_text(
        "## Accuracy\n\n| GPUs | Time to train |\n|---|---|\n| 1 | 33 min |\n| 8 | 900 |\n\n"
        "## Speed\n\n| GPUs | img/s | speedup |\n|---|---|---|\n| 1 | 100 | 1 |\n| 8 | 760 | 7.6 |\n"
    )
    assert main(["verify", "table", str(path)]) == 0
    assert "Accuracy: not read, '33 min' has a unit" in capsys.readouterr().out


def test_a_bad_cell_costs_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    rows = ["gpus,img/s", "1,100", "2,195", "4,380", "8,N/A", "16,1400"]
    path.write_text("\n".join(rows))
    assert main(["predict", "--table", str(path), "--to", "32"]) in (0, 5)
    assert "point 4" in capsys.readouterr().out
