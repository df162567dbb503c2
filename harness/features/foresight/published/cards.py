"""Read the scaling sweeps of Megatron-Bridge's model verification cards (``card.yaml``).

A card lists training runs by item and hardware. Its item ``pretrain_weak_scaling`` has points with
the number of GPUs, the global batch and metrics of the last ten steps.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

#: The item of a card that holds a scaling sweep.
ITEM = "pretrain_weak_scaling"
#: Metrics of a point, and the names of their fields in a table.
METRICS: Mapping[str, str] = {
    "last_10_steps_step_time_ms_avg": "step_time_ms",
    "last_10_steps_tokens_per_second_per_gpu_avg": "tokens_per_s_per_gpu",
    "last_10_steps_model_tflops_per_gpu_avg": "tflops_per_gpu",
}


def tables(card: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a table for each kind of hardware on which a card has a scaling sweep."""
    items = card.get("items")
    sweeps = items.get(ITEM) if isinstance(items, Mapping) else None
    title = str(card.get("title") or "card")
    for hardware, sweep in sweeps.items() if isinstance(sweeps, Mapping) else ():
        points = sweep.get("points") if isinstance(sweep, Mapping) else None
        rows = [_row(point) for point in points or () if isinstance(point, Mapping)]
        nodes = [row.pop("gpus_per_node") for row in rows]
        model = card.get("model")
        yield {
            "id": f"{title}, {hardware}",
            "source": "Megatron-Bridge model verification card",
            "hardware": {"gpu": str(hardware), "gpus_per_node": max(nodes, default=8)},
            "model": str(model.get("hf_id")) if isinstance(model, Mapping) else title,
            "precision": str(sweep.get("precision", "")),
            "points": rows,
        }


def _row(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point as a row; the length of a sequence and the node are options of its command."""
    words = str(point.get("command", ""))
    metrics = point.get("metrics")
    measured = metrics if isinstance(metrics, Mapping) else {}
    seq, per_node = (_option(words, name) for name in ("seq_length", "gpus-per-node"))
    return {
        "gpus": point.get("num_gpus"),
        "global_batch": point.get("global_batch_size"),
        **({"seq": seq} if seq else {}),
        "gpus_per_node": per_node or 8,
        **{ours: measured[name] for name, ours in METRICS.items() if measured.get(name)},
    }


def _option(words: str, name: str) -> int | None:
    match = re.search(rf"--{name}[ =](\d+)", words)
    return int(match[1]) if match else None
