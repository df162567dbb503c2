"""The metrics that a contrast or a threshold can name.

To add a metric that can be computed from existing samples, add an entry to ``METRICS``. A metric of
a newly measured value also needs a field of ``record.RankRecord``, and a property of
``record.LaunchRecord`` that reduces it over the ranks.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

#: Upper limit of a plausible scaling efficiency. A larger value indicates a measurement error.
IMPLAUSIBLE = 1.1


class Form(StrEnum):
    """How the value of a metric is computed from the values of launches."""

    RATIO = "ratio"  # subject / baseline / ideal
    SAVED = "saved"  # 1 - subject / baseline
    ABSOLUTE = "absolute"  # the value of the subject alone
    GATE = "gate"  # whether the correctness check failed an incorrect control


class Factor(StrEnum):
    """A property of a case or of its device that converts a measured value to another unit."""

    TOKENS = "tokens"  # tokens in a sample
    # FLOPs of a sample, forward and backward, counting each operation once
    MODEL_FLOPS = "model FLOPs"
    HARDWARE_FLOPS = "hardware FLOPs"  # FLOPs of a sample, including those that backward recomputes
    DEVICES = "devices"  # the number of devices, one per rank
    PEAK = "peak"  # FLOP/s of a device according to its data sheet, in the case's precision


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The definition of one metric.

    ``means`` is its description, which docs/metrics.md prints. ``read`` is the path of the
    attribute of ``record.LaunchRecord`` that holds the value of a launch. ``tail`` is the path of
    the value at the 95th percentile of steps. The value is multiplied by the factors in ``times``
    and divided by the factors in ``over``.

    ``of_time`` states that background load on the host can change the value. ``scaling`` states
    that the metric needs a scaling sweep and a mode. ``per_rank`` states that the ratio is divided
    by linear scaling. ``of_schedule`` states that it is also divided by the limit of the strategy's
    schedule, and ``of_fabric`` that it is also divided by the limit of the measured fabric.

    ``between_ranks`` states that a single rank has no value. ``signed`` states that the value may
    be negative, so ratios are not defined. ``of_device`` states that only accelerators report the
    value. ``share`` states that the value is a fraction of a whole. ``measured_by`` is the command
    that measures the metric if plans do not measure it. ``sampled_by`` are the things of which each
    gives one value to a verdict.
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
    sampled_by: str = "pairs"
    times: tuple[Factor, ...] = ()
    over: tuple[Factor, ...] = ()

    @property
    def profiled(self) -> bool:
        """Whether the value comes from the time budget of a profiled launch."""
        return "budget." in self.read

    @property
    def logged(self) -> bool:
        """Whether the training itself logs the value (``log_metric``)."""
        return self.read.startswith("logged.")

    @property
    def of_loss(self) -> bool:
        """Whether the metric depends on the loss, and not on the speed of steps."""
        return self.read.startswith("reached.") or self.read == "final_loss"

    @property
    def possible(self) -> tuple[float, float]:
        """The range of possible values.

        A bound outside of this range is always or never met. A ratio per rank is 1 for perfect
        scaling; larger values than ``IMPLAUSIBLE`` are measurement errors.
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
        """Whether the scaling table shows the metric for each world size."""
        return self.scaling and not self.of_schedule


#: Templates from which the entries of ``METRICS`` are derived.
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
    form=Form.ABSOLUTE,
    unit="s",
    more_is_better=False,
    measured_by="scaleproof faults recover",
    sampled_by="trials",
)
_GOODPUT = Metric(
    form=Form.ABSOLUTE,
    unit="1",
    share=True,
    measured_by="scaleproof faults goodput",
    sampled_by="trainings",
)


def _share(name: str, *, means: str, between_ranks: bool = False) -> Metric:
    """Return a metric that is a fraction of the time of a step."""
    read = f"budget.{name}"
    share = Metric(form=Form.ABSOLUTE, unit="1", read=read, more_is_better=False, share=True)
    return replace(share, means=means, between_ranks=between_ranks)


#: The name of a metric that the training logs (``log_metric``), and its definition. Its unit is the
#: one that the threshold states.
_LOGGED = re.compile(r"logged\.[A-Za-z_]\w*", re.ASCII)
_OWN = Metric(form=Form.ABSOLUTE, unit="", signed=True, means="logged by the training")


#: All metrics by name.
METRICS: Mapping[str, Metric] = {
    "efficiency": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        means="throughput relative to the baseline, divided by linear scaling: 1 is perfect",
    ),
    "efficiency_of_ideal": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        of_schedule=True,
        means="efficiency relative to the schedule's limit; a pipeline bubble does not lower it",
    ),
    "attainment": replace(
        _RATE_RATIO,
        scaling=True,
        per_rank=True,
        of_schedule=True,
        of_fabric=True,
        means="efficiency relative to the limit set by this run's single device and its fabric",
    ),
    "speedup": replace(
        _RATE_RATIO, unit="x", scaling=True, means="throughput of the case relative to its baseline"
    ),
    "throughput_ratio": replace(
        _RATE_RATIO,
        means="throughput relative to another case on the same world: the gain of a change",
    ),
    "tokens_ratio": replace(
        _TOKENS,
        form=Form.RATIO,
        unit="1",
        means="tokens per second of the case relative to its baseline",
    ),
    "flops_ratio": replace(
        _FLOPS,
        form=Form.RATIO,
        unit="1",
        means="model FLOPs per second relative to the baseline: how busy the devices are",
    ),
    "step_time_ratio": replace(
        _STEP,
        form=Form.RATIO,
        unit="1",
        means="mean step time of the case relative to its baseline",
    ),
    "memory_saved": replace(
        _PEAK,
        form=Form.SAVED,
        unit="1",
        more_is_better=True,
        means="1 - peak memory of the case / peak memory of its baseline",
    ),
    "wire_ratio": replace(
        _SENT,
        form=Form.RATIO,
        unit="1",
        means="bytes that the busiest rank sends per step, relative to the baseline",
    ),
    "throughput": replace(
        _RATE, means="distinct samples that all ranks train on, per second of the window"
    ),
    "throughput_per_device": replace(
        _RATE, over=_PER_DEVICE, means="throughput divided by the number of devices, one per rank"
    ),
    "tokens_per_s": replace(
        _TOKENS, means="throughput in tokens, for models that train on sequences"
    ),
    "tokens_per_s_per_device": replace(
        _TOKENS, over=_PER_DEVICE, means="tokens per second divided by the number of devices"
    ),
    "flops_per_s": replace(
        _FLOPS,
        means="model FLOPs per second: forward and backward, each operation counted once (PaLM)",
    ),
    "flops_per_s_per_device": replace(
        _FLOPS, over=_PER_DEVICE, means="model FLOPs per second divided by the number of devices"
    ),
    "mfu": replace(
        _MFU,
        means="model FLOPs per second and device / data-sheet peak of the device in this precision",
    ),
    "hfu": replace(
        _MFU,
        times=(Factor.HARDWARE_FLOPS,),
        means="mfu including recomputed FLOPs: how busy a device is, not how fast it trains",
    ),
    "step_s": replace(
        _STEP, means="mean step time of the window; a step takes as long as its slowest rank"
    ),
    "median_step_s": replace(
        _STEP,
        read="steps.median_s",
        tail="",
        means="median step time of the window; a step takes as long as its slowest rank",
    ),
    "peak_bytes": replace(
        _PEAK, means="peak memory of the largest rank: allocated on a GPU, resident on CPUs"
    ),
    "reserved_bytes": replace(
        _PEAK,
        read="reserved_bytes",
        of_device=True,
        means="peak device memory that the largest rank's allocator reserves, used or not",
    ),
    "sent_bytes": replace(_SENT, means="mean bytes per step that the busiest rank sends"),
    "memory_growth": replace(
        _PEAK,
        unit="B/step",
        read="growth.slope",
        signed=True,
        means="memory growth of the fastest-growing rank, by a least-squares fit",
    ),
    "energy_per_sample": replace(
        _ENERGY,
        means="energy of the devices in the window per sample; only for launches on one node",
    ),
    "energy_per_token": replace(
        _ENERGY,
        over=(Factor.TOKENS,),
        means="energy of the devices in the window per token; only for launches on one node",
    ),
    "comm_share": _share(
        "comm_share",
        between_ranks=True,
        means="share of a step in which ranks communicate, overlapped with compute or not",
    ),
    "exposed_comm_share": _share(
        "exposed_share",
        between_ranks=True,
        means="share of a step in which ranks communicate and compute nothing",
    ),
    "wait_share": _share(
        "wait_share",
        between_ranks=True,
        means="share of a step in which ranks wait for other ranks",
    ),
    "bubble_share": _share(
        "bubble_share",
        between_ranks=True,
        means="share of a step in which a pipeline stage has no work",
    ),
    "data_share": _share("data_share", means="share of a step in which ranks wait for their batch"),
    "host_idle_share": _share(
        "host_idle_share", means="share of a step in which a device waits for its host"
    ),
    "stage_imbalance": replace(
        _share(
            "stage_imbalance",
            between_ranks=True,
            means="compute time of the busiest rank / mean over ranks: 1 is balanced",
        ),
        share=False,
    ),
    "expert_load_variation": Metric(
        form=Form.ABSOLUTE,
        unit="1",
        read="expert_variation",
        more_is_better=False,
        of_time=False,
        means="standard deviation of the expert loads / their mean, in the worst layer",
    ),
    "dropped_tokens": Metric(
        form=Form.ABSOLUTE,
        unit="1",
        read="dropped_share",
        share=True,
        more_is_better=False,
        of_time=False,
        means="share of token-to-expert assignments that exceeded an expert's capacity",
    ),
    "skipped_steps": replace(
        _PEAK, unit="1", read="skipped_steps", means="steps that the gradient scaler skipped"
    ),
    "staleness": replace(
        _PEAK,
        unit="steps",
        read="staleness",
        between_ranks=True,
        means="largest number of steps by which the slowest rank lags behind another rank",
    ),
    "compile_s": replace(
        _PEAK,
        unit="s",
        read="compile_s",
        means="time that the slowest rank spent compiling before the window",
    ),
    "time_to_loss": replace(
        _TO_LOSS,
        means="time until the mean loss of several steps reached the plan's target",
    ),
    "time_to_loss_ratio": replace(
        _TO_LOSS,
        form=Form.RATIO,
        unit="1",
        means="time until the target loss of the plan, relative to the baseline",
    ),
    "samples_to_loss": replace(
        _SAMPLES_TO_LOSS,
        means="samples until the mean loss of several steps reached the plan's target",
    ),
    "samples_to_loss_ratio": replace(
        _SAMPLES_TO_LOSS,
        form=Form.RATIO,
        unit="1",
        means="samples until the target loss of the plan, relative to the baseline",
    ),
    "final_loss": replace(
        _TO_LOSS,
        unit="nats",
        read="final_loss",
        of_time=False,
        means="mean loss of the last steps, for plans with a target loss",
    ),
    "communication_cost": replace(
        _STEP,
        form=Form.SAVED,
        unit="1",
        means="share of the step time that disappears if ranks do not communicate",
    ),
    "data_cost": replace(
        _STEP,
        form=Form.SAVED,
        unit="1",
        means="share of the step time that disappears if batches are made only once",
    ),
    "bus_bandwidth_of_link": replace(
        _FABRIC,
        unit="1",
        means="bus bandwidth of a large collective / data-sheet rate of the link",
    ),
    "network_used": replace(
        _FABRIC,
        unit="1",
        of_time=False,
        means="1 if NCCL uses the node's InfiniBand, RoCE or EFA between nodes, 0 if it does not",
    ),
    "bus_bandwidth": replace(
        _FABRIC, means="data rate of the busiest link in a large collective (as in nccl-tests)"
    ),
    "collective_latency": replace(
        _FABRIC,
        unit="s",
        more_is_better=False,
        means="time of a collective on few bytes",
    ),
    "recovery_s": replace(_RECOVERY, means="time from a fault to the first step of the new world"),
    "checkpoint_stall_s": replace(_RECOVERY, means="time that training waits for a checkpoint"),
    "goodput": replace(
        _GOODPUT,
        means="share of the wall-clock time of an interrupted training spent on useful steps",
    ),
    "lost_work": replace(
        _GOODPUT,
        more_is_better=False,
        means="share of an interrupted training's wall-clock time spent on steps that faults undid",
    ),
    "interruptions": replace(
        _GOODPUT,
        unit="1/h",
        share=False,
        more_is_better=False,
        means="faults per hour of an interrupted training's wall-clock time",
    ),
    "checkpoint_bandwidth": replace(
        _RECOVERY,
        unit="B/s",
        more_is_better=True,
        means="bytes of a checkpoint per second of saving it",
    ),
    "caught": Metric(
        form=Form.GATE,
        unit="1",
        of_time=False,
        means="whether the correctness check fails a training that is incorrect on purpose",
    ),
}

#: The metrics on which two runs can be compared: values of single launches.
COMPARABLE = tuple(
    name
    for name, metric in METRICS.items()
    if metric.form is Form.ABSOLUTE
    and metric.read
    and not (metric.profiled or metric.signed or metric.times or metric.over)
)


def metric(name: str) -> Metric:
    """Return the metric of this name.

    A name such as ``sent_bytes/step_s`` is the ratio of two absolute metrics, here in B/s, and
    ``logged.NAME`` is a metric that the training logs. Raises KeyError for other names.
    """
    if _LOGGED.fullmatch(name):
        return replace(_OWN, read=name)
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
