"""Headings as projects write them mean the same fields for ``predict`` and ``verify table``."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.foresight.claims import ClaimedColumn, column
from harness.features.foresight.learned import learned
from harness.features.foresight.prediction import predict
from harness.features.foresight.published.headings import field_name
from harness.features.foresight.published.measures import unit_of
from harness.features.foresight.published.reading import NUMBERS
from harness.features.foresight.published.table import PublishedTable, read
from harness.interface.cli.main import main

#: Headings of torchtitan, Megatron, Transformers, NVIDIA, MLPerf and others.
SIZES = (
    "GPUs", "#GPUs", "Number of GPUs", "GPU count", "n_gpu", "num_gpus", "TPUs", "NPUs", "GCDs",
    "processes", "chips", "gpu_num", "GPU number", "NGPU", "Device Num", "cards", "卡数",
    "Num of GPU cards", "Number of V100 GPUs", "accelerators", "workers", "**GPUs**", "No. of GPUs", "devices",
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
    rates = (ClaimedColumn.TIME, ClaimedColumn.THROUGHPUT, ClaimedColumn.UTILISATION)
    assert column(heading) in rates
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
    "tokens from batch and step": (
        "GPUs,global_batch,seq,step_s,tokens_per_s\n512,1024,8192,7.324,1145358\n", True, 1,
    ),
    "half of the tokens": (
        "GPUs,global_batch,seq,step_s,tokens_per_s\n512,1024,8192,7.324,572679\n", False, 0,
    ),
    "means over other steps": (
        "GPUs,batch_size_per_gpu,step_time_ms,img/s\n1,64,100,655\n8,64,110,4600\n", True, 2,
    ),
    "MFU beside rates": (
        "GPUs,tokens/s,MFU\n128,286300.61,47.59%\n256,567564.82,47.17%\n", True, 1,
    ),
    "half of the rate of an MFU": (
        "GPUs,params,tokens/s,MFU\n128,314b,286300.61,47.59%\n512,314b,572679,47.6%\n", False, 0,
    ),
    "days of a trillion tokens": (
        "GPUs,tokens/s,Time to train 1T tokens in days\n128,286300,40.43\n256,567564,20.39\n",
        True, 2,
    ),
    "days of another rate": (
        "GPUs,tokens/s,Time to train 1T tokens in days\n128,286300,40.43\n256,567564,29.9\n",
        False, 1,
    ),
    "weak scaling beside communication": (
        "GPUs,Step time,Throughput,Speedup,Efficiency,Comm fraction\n1,7.61ms,134.5,1.00x,100%,0%\n"
        "2,9.87ms,207.5,1.54x,77.1%,22.9%\n", True, 1,
    ),
    "thousands and millions": (
        "GPUs,Throughput,Speedup\n1,250K/sec,1.0x\n8,1.8M/sec,7.2x\n", True, 2,
    ),
    "rounded to hundreds": (
        "GPUs,tokens/s,Efficiency\n1,12300,100%\n16,172000,88%\n", True, 2,
    ),
    "far beyond hundreds": (
        "GPUs,tokens/s,Efficiency\n1,12300,100%\n16,172000,91%\n", False, 1,
    ),
    "a column of devices": ("GPU,GPUs,img/s,Speedup\nH200,1,400,1\nH200,8,3000,7.5\n", True, 2),
    "minutes": ("GPUs,Time,Speedup\n1,3h,1\n4,50m,3.6\n", True, 2),
    "a loss beside": ("GPUs,img/s,Loss,Speedup\n1,100,2.31,1\n4,390,2.29,3.9\n", True, 2),
}  # fmt: skip


@pytest.mark.parametrize(("text", "honest", "consistent"), TABLES.values(), ids=TABLES)
def test_ladders_of_one_table_are_checked_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, honest: bool, consistent: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert main(["verify", "table", str(path)]) == (0 if honest else 1)
    out = capsys.readouterr().out
    assert not consistent or f"{consistent} consistent" in out


def test_rates_and_utilisation_of_unstated_models_are_uncheckable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVIDIA's DGX Cloud README has such a table of a model, and one of shortened models."""
    path = tmp_path / "t.md"
    path.write_text(
        "| Grok1 314b | 128x GB200 GPUs | 512x GB200 GPUs |\n|---|---|---|\n"
        "| Throughput in tokens per second | 286300.61 | 572679 |\n"
        "| Model flops utilization | 47.59% | 47.6% |\n"
    )
    assert main(["verify", "table", str(path)]) == 5
    words = " ".join(capsys.readouterr().out.split())
    assert "utilisation 47.6% is +100.0% off" in words
    assert "add a column 'params' to have their utilisation checked" in words


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


CARD = """title: qwen3_30b_a3b
model: {hf_id: Qwen/Qwen3-30B-A3B}
items:
  pretrain: {H100: {status: verified}}
  pretrain_weak_scaling:
    GB300:
      status: verified
      precision: fp8_mx
      points:
"""
POINT = """        - num_gpus: {gpus}
          global_batch_size: {batch}
          command: ./train.sh --nodes 2 --gpus-per-node 4 --seq_length 4096 --max_steps 50
          metrics:
            initial_loss: 12.3
            last_10_steps_step_time_ms_avg: {step_ms}
            last_10_steps_model_tflops_per_gpu_avg: {tflops}
            last_10_steps_tokens_per_second_per_gpu_avg: {tokens}
"""


@pytest.mark.parametrize(("tokens", "status"), [(42281.3, 0), (21140.6, 1)])
def test_a_verification_card_of_megatron_bridge_is_checked(
    tmp_path: Path, tokens: float, status: int
) -> None:
    path = tmp_path / "card.yaml"
    first = POINT.format(gpus=8, batch=512, step_ms=6000.0, tflops=1000.0, tokens=43690.667)
    second = POINT.format(gpus=32, batch=2048, step_ms=6200.0, tflops=967.0, tokens=tokens)
    path.write_text(CARD + first + second)
    assert main(["verify", "table", str(path)]) == status
    assert main(["predict", "--table", str(path), "--to", "128"]) == 0


@pytest.mark.parametrize("text", ["title: x\n", "a: [", "items: {pretrain: {H100: {}}}\n"])
def test_yaml_without_a_sweep_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    assert main(["verify", "table", str(path)]) == 4
    assert "items.pretrain_weak_scaling" in capsys.readouterr().err


def test_a_baseline_in_another_sweep_is_no_contradiction(tmp_path: Path) -> None:
    """As in LightX2V's README: each framework's speedup is relative to the first framework."""
    path = tmp_path / "t.csv"
    path.write_text(
        "Framework,GPUs,Step time,Speedup\nA,1,9.77s,1.0x\nB,1,7.35s,1.3x\nB,8,5.02s,1.5x\n"
        "A,8,2.94s,1x\n"
    )
    assert main(["verify", "table", str(path)]) in (0, 5)


def test_a_table_without_leading_bars_is_read(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(
        "# Speed\n\nGPUs | img/s | Speedup\n--- | --- | ---\n1 | 400 | 1\n8 | 3000 | 7.5\n"
    )
    assert main(["verify", "table", str(path)]) == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (':::MLLOG {"key": "run_start"}\n:::MLLOG {"key": "run_stop"}\n', "MLPerf"),
        (" iteration 10/ 100 | elapsed time per iteration (ms): 612.3 |\n", "a log of a training"),
        ("# nThread 1 nGpus 8 minBytes 8\n", "nccl-tests"),
        ('{"a": 1}\n{"a": 2}\n', "one JSON object a line"),
    ],
)
def test_logs_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, name: str
) -> None:
    path = tmp_path / "training.log"
    path.write_text(text)
    assert main(["verify", "table", str(path)]) == 4
    assert name in capsys.readouterr().err


def test_two_clusters_in_one_table_are_predicted_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [(c, n, r * n) for c, r in (("Mahti", 400), ("Puhti", 100)) for n in (1, 2, 4)]
    path.write_text("\n".join(["Cluster,GPUs,img/s", *(f"{c},{n},{r}" for c, n, r in rows)]))
    (table,) = read(path)
    assert isinstance(table, PublishedTable)
    predicted = predict(table, learned()).predicted
    assert len(predicted) == 2 and all(abs(size.miss or 0.0) < 0.05 for size in predicted)
