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


class Factor(StrEnum):
    """A fact of a case or of its device, by which a launch's reading becomes another figure."""

    TOKENS = "tokens"  # of a sample
    MODEL_FLOPS = "model FLOPs"  # of a sample, forward and backward: each operation once
    HARDWARE_FLOPS = "hardware FLOPs"  # of a sample, with what is computed again in backward
    DEVICES = "devices"  # one of each rank
    PEAK = "peak"  # FLOP/s of a device by its data sheet, in the case's precision


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    ``means`` is its definition, as docs/metrics.md has it. ``read`` is where a launch has it: a
    path of attributes of ``record.LaunchRecord``; ``tail`` the same on 95th percentiles of steps.
    What is read is multiplied with the factors of ``times``, and divided by those of ``over``.
    ``of_time`` metrics are spoilt by a noisy host.
    ``scaling`` ones belong to ladders and need a mode; ``per_rank`` ones are divided by linear
    scaling, ``of_schedule`` ones also by what the strategy's schedule allows, ``of_fabric`` ones by
    what the measured fabric allows. ``between_ranks``:
    one rank alone has none. ``signed`` ones may lie below zero, so that no two of them have a
    ratio. ``of_device``: a device tells it, cores do not. ``share``: a part of a whole.
    ``measured_by`` is the command that measures what plans do not.
    """

    form: Form
    unit: str
    means: str = ""
    read: str = ""
    tail: str = ""
    more_is_better: bool = True
    of_time: bool = True
    scaling: bool = False
    per_rank: bool = False
    of_schedule: bool = False
    of_fabric: bool = False
    between_ranks: bool = False
    signed: bool = False
    of_device: bool = False
    share: bool = False
    measured_by: str = ""
    times: tuple[Factor, ...] = ()
    over: tuple[Factor, ...] = ()

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
        return 0.0, 1.0 if self.share else math.inf

    @property
    def tabled(self) -> bool:
        """Whether the scaling table shows it, rung by rung."""
        return self.scaling and not self.of_schedule


_RATE = Metric(form=Form.ABSOLUTE, unit="samples/s", read="throughput", tail="tail_throughput")
_RATE_RATIO = replace(_RATE, form=Form.RATIO, unit="1")
_TOKENS = replace(_RATE, unit="tokens/s", times=(Factor.TOKENS,))
_FLOPS = replace(_RATE, unit="FLOP/s", times=(Factor.MODEL_FLOPS,))
_PER_DEVICE = (Factor.DEVICES,)
_MFU = replace(_FLOPS, unit="1", over=(Factor.DEVICES, Factor.PEAK), share=True)
_STEP = Metric(
    form=Form.ABSOLUTE, unit="s", read="steps.mean_s", tail="steps.p95_s", more_is_better=False
)
_ENERGY = replace(_STEP, unit="J", read="energy_per_sample", tail="", of_device=True)
_PEAK = Metric(form=Form.ABSOLUTE, unit="B", read="peak_bytes", more_is_better=False, of_time=False)
_SENT = replace(_PEAK, read="sent_bytes", between_ranks=True)
_TO_LOSS = Metric(form=Form.ABSOLUTE, unit="s", read="reached.seconds", more_is_better=False)
_SAMPLES_TO_LOSS = replace(_TO_LOSS, unit="samples", read="reached.samples", of_time=False)
_FABRIC = Metric(form=Form.ABSOLUTE, unit="B/s", measured_by="scaleproof network")
_RECOVERY = Metric(
    form=Form.ABSOLUTE, unit="s", more_is_better=False, measured_by="scaleproof faults recover"
)
_GOODPUT = Metric(form=Form.ABSOLUTE, unit="1", share=True, measured_by="scaleproof faults goodput")


def _share(name: str, *, means: str, between_ranks: bool = False) -> Metric:
    read = f"budget.{name}"
    share = Metric(form=Form.ABSOLUTE, unit="1", read=read, more_is_better=False, share=True)
    return replace(share, means=means, between_ranks=between_ranks)


METRICS: Mapping[str, Metric] = {
    "efficiency": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        means="throughput over its baseline's and over linear scaling: 1 is perfect",
    ),
    "efficiency_of_ideal": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        of_schedule=True,
        means="efficiency over what the schedule allows: a pipeline's bubble is no loss",
    ),
    "attainment": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        of_schedule=True,
        of_fabric=True,
        means="efficiency over what this run's one device and measured fabric allow",
    ),
    "speedup": replace(
        _RATE_RATIO, unit="x", scaling=True, means="throughput of the case over its baseline's"
    ),
    "throughput_ratio": replace(
        _RATE_RATIO, means="throughput over that of a case of the same world: what a change brings"
    ),
    "tokens_ratio": replace(
        _TOKENS, form=Form.RATIO, unit="1", means="tokens a second of the case over its baseline's"
    ),
    "flops_ratio": replace(
        _FLOPS,
        form=Form.RATIO,
        unit="1",
        means="model FLOPs a second over its baseline's: how busy devices are kept",
    ),
    "step_time_ratio": replace(
        _STEP, form=Form.RATIO, unit="1", means="mean step of the case over its baseline's"
    ),
    "memory_saved": replace(
        _PEAK,
        form=Form.SAVED,
        unit="1",
        more_is_better=True,
        means="1 - peak memory of the case over its baseline's",
    ),
    "wire_ratio": replace(
        _SENT,
        form=Form.RATIO,
        unit="1",
        means="bytes that the busiest rank sends in a step, over its baseline's",
    ),
    "throughput": replace(
        _RATE, means="distinct samples trained on over the time of the window, of all ranks"
    ),
    "throughput_per_device": replace(
        _RATE, over=_PER_DEVICE, means="throughput over the number of devices, one of each rank"
    ),
    "tokens_per_s": replace(_TOKENS, means="throughput in tokens, of models of sequences"),
    "tokens_per_s_per_device": replace(
        _TOKENS, over=_PER_DEVICE, means="tokens a second over the number of devices"
    ),
    "flops_per_s": replace(
        _FLOPS,
        means="FLOPs a second by the model: forward and backward, each operation once (PaLM)",
    ),
    "flops_per_s_per_device": replace(
        _FLOPS, over=_PER_DEVICE, means="model FLOPs a second over the number of devices"
    ),
    "mfu": replace(
        _MFU, means="model FLOPs a second and device, over its data sheet's peak in that precision"
    ),
    "hfu": replace(
        _MFU,
        times=(Factor.HARDWARE_FLOPS,),
        means="as mfu, with FLOPs that are computed again: how busy a device is, not how fast",
    ),
    "step_s": replace(_STEP, means="mean step of the window, each as long as its slowest rank's"),
    "median_step_s": replace(
        _STEP,
        read="steps.median_s",
        tail="",
        means="median step of the window, each as long as its slowest rank's",
    ),
    "peak_bytes": replace(
        _PEAK, means="peak memory of the largest rank: allocated on a device, resident on cores"
    ),
    "reserved_bytes": replace(
        _PEAK,
        read="reserved_bytes",
        of_device=True,
        means="peak of what the largest rank's allocator holds of its device, used or not",
    ),
    "sent_bytes": replace(_SENT, means="bytes that the busiest rank sends in a mean step"),
    "memory_growth": replace(
        _PEAK,
        unit="B/step",
        read="growth.slope",
        signed=True,
        means="growth of the fastest-growing rank's memory, by least squares",
    ),
    "energy_per_sample": replace(
        _ENERGY, means="what the devices took in the window, over the samples; launches on one node"
    ),
    "energy_per_token": replace(
        _ENERGY,
        over=(Factor.TOKENS,),
        means="what the devices took in the window, over the tokens; launches on one node",
    ),
    "comm_share": _share(
        "comm_share",
        between_ranks=True,
        means="share of a step in which ranks communicate, hidden or not",
    ),
    "exposed_comm_share": _share(
        "exposed_share",
        between_ranks=True,
        means="share of a step in which ranks communicate and compute nothing",
    ),
    "wait_share": _share(
        "wait_share", between_ranks=True, means="share of a step in which ranks wait for others"
    ),
    "bubble_share": _share(
        "bubble_share",
        between_ranks=True,
        means="share of a step in which a pipeline's stage has no work",
    ),
    "data_share": _share("data_share", means="share of a step in which ranks wait for their batch"),
    "host_idle_share": _share(
        "host_idle_share", means="share of a step in which a device waits for its host"
    ),
    "stage_imbalance": replace(
        _share(
            "stage_imbalance",
            between_ranks=True,
            means="compute of the busiest rank over the mean rank's: 1 is balanced",
        ),
        share=False,
    ),
    "expert_load_variation": Metric(
        form=Form.ABSOLUTE,
        unit="1",
        read="expert_variation",
        more_is_better=False,
        of_time=False,
        means="standard deviation of experts' loads over their mean, in the worst layer",
    ),
    "dropped_tokens": Metric(
        form=Form.ABSOLUTE,
        unit="1",
        read="dropped_share",
        share=True,
        more_is_better=False,
        of_time=False,
        means="share of the choices of experts that found no room",
    ),
    "skipped_steps": replace(
        _PEAK, unit="1", read="skipped_steps", means="steps that a scaler of losses left out"
    ),
    "staleness": replace(
        _PEAK,
        unit="steps",
        read="staleness",
        between_ranks=True,
        means="steps that the slowest rank is behind what it trains on, at most",
    ),
    "compile_s": replace(
        _PEAK,
        unit="s",
        read="compile_s",
        means="time for which the slowest rank compiled, before the window",
    ),
    "time_to_loss": replace(
        _TO_LOSS,
        means="time until the mean loss of several steps had come to where the plan asks",
    ),
    "time_to_loss_ratio": replace(
        _TO_LOSS,
        form=Form.RATIO,
        unit="1",
        means="time until the loss that the plan asks for, over its baseline's",
    ),
    "samples_to_loss": replace(
        _SAMPLES_TO_LOSS,
        means="samples until the mean loss of several steps had come to where the plan asks",
    ),
    "samples_to_loss_ratio": replace(
        _SAMPLES_TO_LOSS,
        form=Form.RATIO,
        unit="1",
        means="samples until the loss that the plan asks for, over its baseline's",
    ),
    "final_loss": replace(
        _TO_LOSS,
        unit="nats",
        read="final_loss",
        of_time=False,
        means="mean loss of the last steps, of plans that ask for one",
    ),
    "communication_cost": replace(
        _STEP,
        form=Form.SAVED,
        unit="1",
        means="share of a step that is gone when ranks do not communicate",
    ),
    "data_cost": replace(
        _STEP,
        form=Form.SAVED,
        unit="1",
        means="share of a step that is gone when batches are made once",
    ),
    "bus_bandwidth_of_link": replace(
        _FABRIC,
        unit="1",
        means="bus bandwidth of a large collective over the rate of the link's data sheet",
    ),
    "network_used": replace(
        _FABRIC,
        unit="1",
        of_time=False,
        means="1 if NCCL uses the node's InfiniBand, RoCE or EFA between nodes, 0 if it does not",
    ),
    "bus_bandwidth": replace(
        _FABRIC, means="what the busiest link carried in a large collective (as nccl-tests)"
    ),
    "collective_latency": replace(
        _FABRIC,
        unit="s",
        more_is_better=False,
        means="time of a collective of few bytes",
    ),
    "recovery_s": replace(_RECOVERY, means="time from a fault to the first step of the new world"),
    "checkpoint_stall_s": replace(
        _RECOVERY, means="time for which a checkpoint keeps training waiting"
    ),
    "goodput": replace(
        _GOODPUT, means="share of the wall clock of an interrupted training that trained"
    ),
    "lost_work": replace(
        _GOODPUT,
        more_is_better=False,
        means="share of an interrupted training's wall clock spent on steps that faults undid",
    ),
    "interruptions": replace(
        _GOODPUT,
        unit="1/h",
        share=False,
        more_is_better=False,
        means="faults an hour of an interrupted training's wall clock",
    ),
    "checkpoint_bandwidth": replace(
        _RECOVERY,
        unit="B/s",
        more_is_better=True,
        means="bytes of a checkpoint over the time of saving it",
    ),
    "caught": Metric(
        form=Form.GATE,
        unit="1",
        of_time=False,
        means="whether the gate calls a training that is wrong on purpose wrong",
    ),
}

#: What two runs can be compared on: a launch's own figures.
COMPARABLE = tuple(
    name
    for name, metric in METRICS.items()
    if metric.form is Form.ABSOLUTE
    and metric.read
    and not (metric.profiled or metric.signed or metric.times or metric.over)
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
        times=(*top.times, *bottom.over),
        over=(*top.over, *bottom.times),
    )
