"""Metrics: all that a contrast or a rule can name, one entry each.

A metric that existing samples give is one more entry. A new reading is a field of
``record.RankRecord`` too, and a property of ``record.LaunchRecord`` that sums it up over ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

#: A value beyond this share of perfect scaling is not scaling, it is a mistake.
IMPLAUSIBLE = 1.1


class Form(StrEnum):
    """How a metric is made of what is read from launches."""

    RATIO = "ratio"  # subject / baseline / ideal
    SAVED = "saved"  # 1 - subject / baseline
    ABSOLUTE = "absolute"  # the subject's own value
    GATE = "gate"  # whether the correctness gate caught a control


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    ``read`` is where a launch has it: a path of attributes of ``record.LaunchRecord``; ``tail`` the
    same on 95th percentiles of steps. ``of_time`` metrics are spoilt by a noisy host.
    ``scaling`` ones belong to ladders and need a mode; ``per_rank`` ones are divided by linear
    scaling, ``of_schedule`` ones also by what the strategy's schedule allows. ``between_ranks``:
    one rank alone has none. ``signed`` ones may lie below zero, so that no two of them have a
    ratio. ``measured_by`` is the command that measures what plans do not.
    """

    form: Form
    unit: str
    read: str = ""
    tail: str = ""
    more_is_better: bool = True
    of_time: bool = True
    scaling: bool = False
    per_rank: bool = False
    of_schedule: bool = False
    between_ranks: bool = False
    signed: bool = False
    measured_by: str = ""

    @property
    def profiled(self) -> bool:
        """Whether it is read from the budget of a profiled launch."""
        return "budget." in self.read

    @property
    def of_loss(self) -> bool:
        """Whether it says when a loss was reached, not how fast steps are."""
        return self.read.startswith("reached.") or self.read == "final_loss"

    @property
    def possible(self) -> tuple[float, float]:
        """Values lie between these: a bound outside is one that nothing can miss, or meet.

        A ratio per rank is 1 for perfect scaling, and an error above IMPLAUSIBLE times that.
        """
        if self.form is Form.SAVED:
            return -math.inf, 1.0
        if self.signed:
            return -math.inf, math.inf
        if self.per_rank:
            return 0.0, IMPLAUSIBLE
        return 0.0, 1.0 if self.profiled and self.unit == "1" else math.inf

    @property
    def tabled(self) -> bool:
        """Whether the scaling table shows it, rung by rung."""
        return self.scaling and not self.of_schedule


_RATE = Metric(form=Form.ABSOLUTE, unit="samples/s", read="throughput", tail="tail_throughput")
_RATE_RATIO = replace(_RATE, form=Form.RATIO, unit="1")
_STEP = Metric(
    form=Form.ABSOLUTE, unit="s", read="steps.mean_s", tail="steps.p95_s", more_is_better=False
)
_PEAK = Metric(form=Form.ABSOLUTE, unit="B", read="peak_bytes", more_is_better=False, of_time=False)
_SENT = replace(_PEAK, read="sent_bytes", between_ranks=True)
_TO_LOSS = Metric(form=Form.ABSOLUTE, unit="s", read="reached.seconds", more_is_better=False)
_SAMPLES_TO_LOSS = replace(_TO_LOSS, unit="samples", read="reached.samples", of_time=False)
_FABRIC = Metric(form=Form.ABSOLUTE, unit="B/s", measured_by="scaleproof fabric")
_RECOVERY = Metric(
    form=Form.ABSOLUTE, unit="s", more_is_better=False, measured_by="scaleproof recover"
)


def _share(name: str, *, between_ranks: bool = False) -> Metric:
    share = Metric(form=Form.ABSOLUTE, unit="1", read=f"budget.{name}", more_is_better=False)
    return replace(share, between_ranks=between_ranks)


METRICS: Mapping[str, Metric] = {
    "efficiency": replace(_RATE_RATIO, scaling=True, per_rank=True),
    "efficiency_of_ideal": replace(_RATE_RATIO, scaling=True, per_rank=True, of_schedule=True),
    "speedup": replace(_RATE_RATIO, unit="x", scaling=True),
    "throughput_ratio": _RATE_RATIO,
    "step_time_ratio": replace(_STEP, form=Form.RATIO, unit="1"),
    "memory_saved": replace(_PEAK, form=Form.SAVED, unit="1", more_is_better=True),
    "wire_ratio": replace(_SENT, form=Form.RATIO, unit="1"),
    "throughput": _RATE,
    "step_s": _STEP,
    "median_step_s": replace(_STEP, read="steps.median_s", tail=""),
    "peak_bytes": _PEAK,
    "sent_bytes": _SENT,
    "memory_growth": replace(_PEAK, unit="B/step", read="growth.slope", signed=True),
    "energy_per_sample": Metric(
        form=Form.ABSOLUTE, unit="J", read="energy_per_sample", more_is_better=False
    ),
    "comm_share": _share("comm_share", between_ranks=True),
    "exposed_comm_share": _share("exposed_share", between_ranks=True),
    "wait_share": _share("wait_share", between_ranks=True),
    "bubble_share": _share("bubble_share", between_ranks=True),
    "data_share": _share("data_share"),
    "host_idle_share": _share("host_idle_share"),
    "stage_imbalance": _share("stage_imbalance", between_ranks=True),
    "expert_load_variation": Metric(
        form=Form.ABSOLUTE, unit="1", read="expert_variation", more_is_better=False, of_time=False
    ),
    "dropped_tokens": Metric(
        form=Form.ABSOLUTE, unit="1", read="dropped_share", more_is_better=False, of_time=False
    ),
    "skipped_steps": replace(_PEAK, unit="1", read="skipped_steps"),
    "staleness": replace(_PEAK, unit="steps", read="staleness", between_ranks=True),
    "compile_s": replace(_PEAK, unit="s", read="compile_s"),
    "time_to_loss": _TO_LOSS,
    "time_to_loss_ratio": replace(_TO_LOSS, form=Form.RATIO, unit="1"),
    "samples_to_loss": _SAMPLES_TO_LOSS,
    "samples_to_loss_ratio": replace(_SAMPLES_TO_LOSS, form=Form.RATIO, unit="1"),
    "final_loss": replace(_TO_LOSS, unit="nats", read="final_loss", of_time=False),
    "communication_cost": replace(_STEP, form=Form.SAVED, unit="1"),
    "data_cost": replace(_STEP, form=Form.SAVED, unit="1"),
    "bus_bandwidth": _FABRIC,
    "collective_latency": replace(_FABRIC, unit="s", more_is_better=False),
    "recovery_s": _RECOVERY,
    "checkpoint_stall_s": _RECOVERY,
    "goodput": Metric(form=Form.ABSOLUTE, unit="1", measured_by="scaleproof goodput"),
    "checkpoint_bandwidth": replace(_RECOVERY, unit="B/s", more_is_better=True),
    "caught": Metric(form=Form.GATE, unit="1", of_time=False),
}

#: What two runs can be compared on: a launch's own figures.
COMPARABLE = tuple(
    name
    for name, m in METRICS.items()
    if m.form is Form.ABSOLUTE and m.read and not (m.profiled or m.signed)
)


def metric(name: str) -> Metric:
    """A metric by name; ``sent_bytes/step_s`` is the ratio of two absolute ones, in B/s.

    Raises KeyError for a name that is neither.
    """
    above, slash, below = name.partition("/")
    if not slash:
        return METRICS[name]
    top, bottom = METRICS[above], METRICS[below]
    if top.signed or bottom.signed or {top.form, bottom.form} != {Form.ABSOLUTE}:
        raise KeyError(name)
    return replace(
        top,
        unit="1" if top.unit == bottom.unit else f"{top.unit}/{bottom.unit}",
        read=f"{top.read}/{bottom.read}",
        tail=f"{top.tail or top.read}/{bottom.tail or bottom.read}",
        of_time=top.of_time or bottom.of_time,
        between_ranks=top.between_ranks or bottom.between_ranks,
        measured_by=top.measured_by or bottom.measured_by,
    )
