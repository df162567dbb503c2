"""Published tables are read with any units and names, and mistakes in them are reported."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.features.foresight.physics.schedules import PipelineSchedule
from harness.features.foresight.published.table import PublishedTable, Refused, read
from harness.features.foresight.shapes import KeptStates

PUBLISHED = Path(__file__).parents[3] / "results/published/scaling.json"
LADDER: dict[str, Any] = {
    "id": "ladder", "source": "made up", "strategy": "FSDP", "metric": "step time [s]",
    "hardware": {
        "gpu": "A100-80GB", "gpus_per_node": 8, "peak_tflops_bf16_dense": 312,
        "intra_GBps_per_gpu": 300, "inter_GBps_per_gpu": 25,
    },
    "model": {"name": "7B", "params": 7e9, "layers": 32, "hidden": 4096, "seq": 2048},
    "calibrate_on": [8, 16],
    "points": [
        {"N": 8, "mbs": 4, "step_s": 2.0},
        {"N": 16, "mbs": 4, "step_s": 2.04},
        {"N": 32, "mbs": 4, "step_s": 2.1},
    ],
}  # fmt: skip


def table(tmp_path: Path, **changed: Any) -> PublishedTable:
    (read_table,) = written(tmp_path, {**deepcopy(LADDER), **changed})
    assert isinstance(read_table, PublishedTable), read_table
    return read_table


def written(tmp_path: Path, *tables: Any) -> list[PublishedTable | Refused]:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"schema": "published_scaling/1", "tables": tables}))
    return read(path)


def points(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"points": rows}


def told(tmp_path: Path, **changed: Any) -> str:
    (read_table,) = written(tmp_path, {**deepcopy(LADDER), **changed})
    assert isinstance(read_table, Refused), read_table
    return read_table.why


def test_the_published_tables_are_read() -> None:
    found = read(PUBLISHED)
    assert [t.id for t in found if isinstance(t, Refused)] == ["playbook_tp"]
    tables = {t.id: t for t in found if isinstance(t, PublishedTable)}
    assert {name: len(t.points) for name, t in tables.items()} == {
        "megascale_tab2_megatron_lm": 8, "megascale_tab2_megascale": 8,
        "llmfoundry_fsdp_a100_40": 39, "zero_bubble_tab4_5": 48,
    }  # fmt: skip
    large = tables["megascale_tab2_megascale"].points[-1]
    assert (large.shape.replicas, large.shape.micros, large.shape.chunks) == (192, 32, 6)
    assert large.shape.kept is KeptStates.OPTIMIZER_CUT and not large.calibrates


def test_every_kind_of_figure_gives_the_same_step_time(tmp_path: Path) -> None:
    """A step of 2 s on 8 GPUs with 32 samples and 65,536 tokens, stated as various rates."""
    per_token = 6 * 7e9 + 12 * 32 * 4096 * 2048
    flops = per_token * 65536 / 2
    figures = {
        "step_s": 2.0, "step_ms": 2000, "step_time_s": 2.0, "iteration_s": 2.0,
        "tokens_per_s": 32768, "tokens_per_s_per_gpu": 4096, "tokens_per_gpu_s": 4096,
        "samples_per_s": 16, "samples_per_gpu_s": 2, "samples_per_s_per_gpu": 2,
        "tflops_per_gpu": flops / 8 / 1e12, "agg_pflops": flops / 1e15,
        "mfu": flops / 8 / 312e12, "mfu_percent": 100 * flops / 8 / 312e12,
    }  # fmt: skip
    for name, value in figures.items():
        read_table = table(tmp_path, metric="", **points([{"N": 8, "mbs": 4, name: value}]))
        assert read_table.points[0].step_s == pytest.approx(2.0, rel=1e-9), name


def test_a_rate_is_per_gpu_if_the_metric_says_so(tmp_path: Path) -> None:
    row = [{"N": 8, "mbs": 4, "tokens_per_s": 4096}]
    read_table = table(tmp_path, metric="tokens/s/GPU", **points(row))
    assert read_table.points[0].step_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    "link",
    [
        {"inter_GBps_per_gpu": 25}, {"inter_GBps_per_node": 200}, {"inter_Gbps_per_gpu": 200},
        {"inter_Gbit_s_per_node": 1600}, {"inter_Tbps_per_node": 1.6},
        {"inter": "8x 200 Gb/s per node"}, {"inter": "RoCE, 1600 Gbps in each server"},
        {"inter": "RDMA 200 Gb/s per GPU"}, {},
    ],
    ids=str,
)  # fmt: skip
def test_link_rates_are_read_in_any_unit_and_assumed_if_missing(
    tmp_path: Path, link: dict[str, Any]
) -> None:
    read_table = table(tmp_path, hardware={"gpu": "A100-80GB", "gpus_per_node": 8, **link})
    assert read_table.fabric.inter_bytes_per_s == pytest.approx(25e9)
    assumed = any("no inter-node rate is stated" in note for note in read_table.notes)
    assert assumed is (link == {})


def test_batches_are_derived_from_the_stated_fields(tmp_path: Path) -> None:
    for row, micros, micro_batch in (
        ({"mbs": 4, "grad_accum": 3}, 3, 4),
        ({"global_batch": 96, "mbs": 4}, 3, 4),
        ({"global_batch": 96, "microbatches": 3}, 3, 4),
        ({"tokens_per_batch": 96 * 2048, "mbs": 4}, 3, 4),
        ({"batch_per_dp": 12, "microbatches": 3}, 3, 4),
        ({"tp": 8, "batch_per_dp": 12}, 12, 1),
    ):
        shape = table(tmp_path, **points([{"N": 8, "step_s": 1, **row}])).points[0].shape
        assert (shape.micros, shape.micro_batch) == (micros, micro_batch), row


def test_calibration_points_may_be_sizes_fields_text_or_defaults(tmp_path: Path) -> None:
    def sizes(**changed: Any) -> list[int]:
        return [p.shape.ranks for p in table(tmp_path, **changed).points if p.calibrates]

    assert sizes() == [8, 16]
    assert sizes(calibrate_on=[{"N": 16}]) == [16]
    assert sizes(calibrate_on={"N": [8, 32]}) == [8, 32]
    assert sizes(calibrate_on=None) == [8, 16]
    rows = [
        {"N": 8, "pp": 8, "m": m, "samples_per_gpu_s": {"1F1B": 1, "ZB-1p": 2}} for m in (8, 24)
    ]
    chosen = table(tmp_path, calibrate_on="1F1B at the largest microbatch count", **points(rows))
    (only,) = (p.shape for p in chosen.points if p.calibrates)
    assert (only.schedule, only.micros) == (PipelineSchedule.ONE_EACH, 24)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (points([]), "no points"),
        (points([{"step_s": 1}]), "the number of GPUs (N) is missing"),
        (points([{"N": "128..512", "step_s": 1}]), "expected a number"),
        (points([{"N": 8, "step_s": -1}]), "above 0"),
        (points([{"N": 12, "tp": 8, "step_s": 1}]), "not a multiple of tp"),
        (points([{"N": 8, "efficiency": 0.9}]), "there are no seconds per step"),
        ({"calibrate_on": [4]}, "no measured point is one of"),
        ({"calibrate_on": "whatever"}, "expected a size, a schedule"),
        ({"hardware": {"gpus_per_node": "eight"}}, "gpus_per_node is 'eight'"),
        ({"hardware": {"inter_GBps_per_gpu": 0}}, "above 0"),
        ({"role": "context", "calibrate_on": None}, "role is not development"),
    ],
)
def test_mistakes_in_a_table_are_reported(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    assert why in told(tmp_path, **changed)


def test_one_bad_table_does_not_affect_the_others(tmp_path: Path) -> None:
    read_table = written(tmp_path, "no table", LADDER)
    assert isinstance(read_table[0], Refused) and isinstance(read_table[1], PublishedTable)


@pytest.mark.parametrize("body", ["{", "[]", '{"tables": []}', '{"schema": "x/9", "tables": [1]}'])
def test_a_file_without_tables_is_an_error_with_a_fix(tmp_path: Path, body: str) -> None:
    path = tmp_path / "tables.json"
    path.write_text(body)
    with pytest.raises(SpecError) as error:
        read(path)
    assert error.value.fix and error.value.expected
    with pytest.raises(SpecError, match="cannot be read"):
        read(tmp_path / "nowhere.json")


def test_ranks_may_be_stated_as_nodes_or_as_a_product(tmp_path: Path) -> None:
    for row, ranks in (({"nodes": 4}, 32), ({"tp": 8, "dp": 2}, 16), ({"gpus": 12}, 12)):
        read_table = table(
            tmp_path, calibrate_on=[ranks], **points([{"mbs": 1, "step_s": 1, **row}])
        )
        assert read_table.points[0].shape.ranks == ranks


def test_unused_fields_are_reported(tmp_path: Path) -> None:
    row = {"N": 8, "mbs": 4, "step_s": 1, "colour": "blue"}
    assert "not used: colour" in table(tmp_path, **points([row])).notes


def test_a_copied_row_does_not_count_twice(tmp_path: Path) -> None:
    """Otherwise copying rows would narrow the intervals."""
    rows = LADDER["points"]
    once, twice = table(tmp_path), table(tmp_path, points=[*rows, rows[0], rows[1]])
    assert len(twice.points) == len(once.points)
    assert sum("counts once" in note for note in twice.notes) == 2
    again = table(tmp_path, points=[*rows, {**rows[0], "step_s": 2.02}])
    assert len(again.points) == 4 and any("several figures" in note for note in again.notes)
