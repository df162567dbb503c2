"""Write scaling sweeps as Megatron-Bridge's model verification cards do (``card.yaml``).

A card has one item ``pretrain_weak_scaling`` with the metrics of each number of GPUs. Readers of
cards derive the efficiency.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.analysis.ladder import ArmRow, arm_row
from harness.analysis.rerun_command import command
from harness.analysis.results import results_of
from harness.base.errors import SpecError
from harness.cases import Mode, Plan
from harness.record import RunRecord, Status
from harness.record.store import load_samples

#: Number of steps at the end of a window over which a card's metrics are averaged.
LAST = 10


def card(records: Sequence[RunRecord], folders: Sequence[Path]) -> bytes:
    """Return a card with each weak scaling sweep of the runs, keyed by strategy and model.

    Raises SpecError if no run has such a sweep.
    """
    sweeps = [
        (record, folder, plan)
        for record, folder in zip(records, folders, strict=True)
        for plan in record.plans
        if len(_rows(record, plan)) > 1
    ]
    if not sweeps:
        raise SpecError(
            "a verification card needs a weak scaling sweep over several sizes",
            where=str(folders[0]),
            fix=f"scaleproof report export {folders[0]} --to points.csv --table points",
        )
    title = "-".join(dict.fromkeys(plan.name for _, _, plan in sweeps))
    items = {
        f"{record.machine.hardware_class} {plan.name}": _sweep(record, folder, plan)
        for record, folder, plan in sweeps
    }
    document = {"title": title, "items": {"pretrain_weak_scaling": items}}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text.encode()


def _rows(record: RunRecord, plan: Plan) -> list[ArmRow]:
    """Return a weak scaling sweep of a plan's largest case, the smallest size first."""
    largest = max((arm.case for arm in plan.arms), key=lambda case: case.world_size)
    arms = [arm for arm in plan.arms if arm.case.strategy == largest.strategy]
    sizes = {row.case.world_size: row for row in (arm_row(record, plan, arm) for arm in arms)
             if row.launches and row.case.mode is Mode.WEAK}  # fmt: skip
    return [row for _, row in sorted(sizes.items())]


def _sweep(record: RunRecord, folder: Path, plan: Plan) -> dict[str, Any]:
    statuses = {result.status for result in results_of(record, plan.hash) if result.rule}
    rows = _rows(record, plan)
    return {
        "status": "verified" if statuses == {Status.PASS} else "unverified",
        "precision": str(rows[0].case.precision),
        "last_verified": record.started_at[:10],
        "points": [_point(record, folder, row) for row in rows],
        "expected_result": f"scaleproof report {folder}",
    }


def _point(record: RunRecord, folder: Path, row: ArmRow) -> dict[str, Any]:
    launch = row.launches[-1]
    ranks = [load_samples(folder, launch.launch, rank) for rank in launch.ranks]
    step_s = max(float(samples.step_s[-LAST:].mean()) for samples in ranks)
    case = row.case
    metrics = {
        "initial_loss": float(ranks[0].loss[0]),
        "final_loss": float(ranks[0].loss[-1]),
        "last_10_steps_step_time_ms_avg": round(1e3 * step_s, 3),
    }
    if row.flops is not None:
        metrics["last_10_steps_model_tflops_per_gpu_avg"] = round(row.flops / 1e12, 3)
    tokens = row.tokens_per_s or row.throughput
    if tokens is not None:
        metrics["last_10_steps_tokens_per_second_per_gpu_avg"] = round(tokens / case.world_size, 3)
    return {
        "num_gpus": case.world_size,
        "global_batch_size": round(launch.consumed / launch.steps.count) if launch.steps else None,
        "command": command(case, record.settings),
        "metrics": metrics,
    }
