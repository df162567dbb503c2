"""Metrics, their units and directions, and how numbers are written for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """How a metric is made from a launch's quantity."""

    RATIO = "ratio"  # subject / baseline / ideal
    SAVED = "saved"  # 1 - subject / baseline
    ABSOLUTE = "absolute"  # the subject's own value
    GATE = "gate"  # whether the correctness gate caught a control


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric that a contrast or a rule can name."""

    quantity: str
    form: Form
    unit: str


METRICS: dict[str, Metric] = {
    "efficiency": Metric(quantity="throughput", form=Form.RATIO, unit="1"),
    "efficiency_of_ideal": Metric(quantity="throughput", form=Form.RATIO, unit="1"),
    "speedup": Metric(quantity="throughput", form=Form.RATIO, unit="x"),
    "throughput_ratio": Metric(quantity="throughput", form=Form.RATIO, unit="1"),
    "step_time_ratio": Metric(quantity="step_s", form=Form.RATIO, unit="1"),
    "memory_saved": Metric(quantity="peak_bytes", form=Form.SAVED, unit="1"),
    "wire_ratio": Metric(quantity="sent_bytes", form=Form.RATIO, unit="1"),
    "throughput": Metric(quantity="throughput", form=Form.ABSOLUTE, unit="samples/s"),
    "step_s": Metric(quantity="step_s", form=Form.ABSOLUTE, unit="s"),
    "median_step_s": Metric(quantity="median_step_s", form=Form.ABSOLUTE, unit="s"),
    "peak_bytes": Metric(quantity="peak_bytes", form=Form.ABSOLUTE, unit="B"),
    "sent_bytes": Metric(quantity="sent_bytes", form=Form.ABSOLUTE, unit="B"),
    "comm_share": Metric(quantity="comm_share", form=Form.ABSOLUTE, unit="1"),
    "exposed_comm_share": Metric(quantity="exposed_comm_share", form=Form.ABSOLUTE, unit="1"),
    "wait_share": Metric(quantity="wait_share", form=Form.ABSOLUTE, unit="1"),
    "bubble_share": Metric(quantity="bubble_share", form=Form.ABSOLUTE, unit="1"),
    "data_share": Metric(quantity="data_share", form=Form.ABSOLUTE, unit="1"),
    "host_idle_share": Metric(quantity="host_idle_share", form=Form.ABSOLUTE, unit="1"),
    "stage_imbalance": Metric(quantity="stage_imbalance", form=Form.ABSOLUTE, unit="1"),
    "communication_cost": Metric(quantity="step_s", form=Form.SAVED, unit="1"),
    "data_cost": Metric(quantity="step_s", form=Form.SAVED, unit="1"),
    "bus_bandwidth": Metric(quantity="bus_bandwidth", form=Form.ABSOLUTE, unit="B/s"),
    "collective_latency": Metric(quantity="collective_latency", form=Form.ABSOLUTE, unit="s"),
    "recovery_s": Metric(quantity="recovery_s", form=Form.ABSOLUTE, unit="s"),
    "checkpoint_stall_s": Metric(quantity="checkpoint_stall_s", form=Form.ABSOLUTE, unit="s"),
    "checkpoint_bandwidth": Metric(quantity="checkpoint_bandwidth", form=Form.ABSOLUTE, unit="B/s"),
    "caught": Metric(quantity="gate", form=Form.GATE, unit="1"),
}

#: Metrics that no plan measures, and the command that does: elsewhere rules on them are out of
#: reach, never silently green.
APART = {
    "bus_bandwidth": "scaleproof fabric",
    "collective_latency": "scaleproof fabric",
    "recovery_s": "scaleproof recover",
    "checkpoint_stall_s": "scaleproof recover",
    "checkpoint_bandwidth": "scaleproof recover",
}
#: Quantities read from the budget of a profiled launch.
PROFILED = frozenset(
    {
        "comm_share", "exposed_comm_share", "wait_share", "bubble_share", "data_share",
        "host_idle_share", "stage_imbalance",
    }
)  # fmt: skip


def metric(name: str) -> Metric:
    """A metric by name; ``sent_bytes/step_s`` is the ratio of two absolute ones, in B/s.

    Raises KeyError for a name that is neither.
    """
    above, slash, below = name.partition("/")
    if not slash:
        return METRICS[name]
    top, bottom = METRICS[above], METRICS[below]
    if top.form is not Form.ABSOLUTE or bottom.form is not Form.ABSOLUTE:
        raise KeyError(name)
    unit = "1" if top.unit == bottom.unit else f"{top.unit}/{bottom.unit}"
    return Metric(quantity=f"{top.quantity}/{bottom.quantity}", form=Form.ABSOLUTE, unit=unit)


def apart(name: str) -> str:
    """The command that measures a metric which no plan does; empty if plans do."""
    return next((APART[q] for q in metric(name).quantity.split("/") if q in APART), "")


def profiled(name: str) -> bool:
    """Whether a metric is read from profiled launches."""
    return bool(PROFILED & set(metric(name).quantity.split("/")))


def timed(name: str) -> bool:
    """Whether a metric is made of times, which a noisy host or a drift can spoil; bytes are not."""
    times = {"throughput", "step_s", "median_step_s"} | PROFILED
    return bool(times & set(metric(name).quantity.split("/")))
