"""Choose a compressor of gradients by its speed and its loss.

A compressor is faster than dense training only on links below some rate, its break-even. Its loss
is compared at the best learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.base import stats
from harness.cases import Arm, CaseSpec, Optimizer, Plan, StandIn
from harness.cases.case import USUAL_LR
from harness.record import LaunchRecord, Purpose, RunRecord

#: The name of a plan's first case, which sends uncompressed gradients.
DENSE = "dense"
#: If 1 / break-even rate is less than this share of 1 / link rate, it is only the rounding error of
#: a difference. The break-even rate is then infinite.
ROUNDING = 1e-9
#: Error probability of an interval; its confidence is 1 - ``ALPHA``.
ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Pays:
    """The break-even of a compressor: it is faster on links slower than ``rate``, in bit/s.

    If ``rate`` is 0, the compressor is never faster. If it is infinite, the compressor is always
    faster. ``low`` and ``high`` are the ends of its interval, which follows from the interval of
    the difference in step times.
    """

    rate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class EncodingCost:
    """The measured cost of a compressor or of dense training, in s and bytes per step.

    ``sent_bytes`` is the number of bytes that the busiest rank sends in a step. ``encode_s`` and
    ``decode_s`` are the times for compression and decompression. ``exchange_s`` is the part of the
    step in which ranks only exchange gradients: the step time, minus the step time of ranks that do
    not communicate. ``exchange_s`` is None for compressors, and if ranks without communication were
    not measured. ``pays`` maps the name of each form of dense training to the break-even rate
    against it.
    """

    name: str
    case: str
    step_s: float
    sent_bytes: float
    bytes_per_parameter: float
    encode_s: float | None
    decode_s: float | None
    loss: float | None
    pays: Mapping[str, Pays]
    exchange_s: float | None = None

    def at(self, rate: float, here: float) -> float:
        """Return the predicted time of a step in s on links with this rate in bit/s.

        ``here`` is the rate of the links on which the step was measured, in bit/s.
        """
        if self.exchange_s is not None and rate > here:
            return self.step_s - self.exchange_s * (1 - here / rate)
        return self.step_s + 8 * self.sent_bytes * (1 / rate - 1 / here)


def link_bps(run: RunRecord, case: CaseSpec) -> float:
    """Return the bandwidth of the link over which a case was measured, in bit/s.

    For an emulated link this is its configured rate. Otherwise it is the rate of large all-reduces
    of the same world, or infinity if these were not measured.
    """
    rows = [
        row
        for row in run.fabric
        if row.operation == "all_reduce" and row.nodes == case.nodes and row.bus_bps
    ]
    if not rows:
        return math.inf
    largest = max(rows, key=lambda row: row.payload_bytes)
    stated = largest.link_mbit if StandIn.EMULATED in case.stand_in else None
    return stated * 1e6 if stated else 8 * float(largest.bus_bps or math.inf)


def costs(run: RunRecord, plan: Plan) -> list[EncodingCost]:
    """Return the cost of every case of a plan, in order.

    Each compressor is compared with the first two cases: dense training in fp32 and in half
    precision.
    """
    beside = [arm.name for arm in plan.arms[:2]]
    known = {arm.name: _by_turn(run, plan, arm.name) for arm in plan.arms}
    apart = [_step_s(known[arm.name]) for arm in plan.arms if not arm.case.communicate]
    apart_s = next((step for step in apart if step is not None), None)
    measured = []
    for arm in plan.arms:
        launches = list(known[arm.name].values())
        step_s = _step_s(known[arm.name])
        described = run.described.get(arm.case.hash)
        facts = None if described is None else described.facts
        if step_s is None or facts is None:
            continue
        measured_bps = link_bps(run, arm.case)
        sent = _sent(launches)
        coded = [launch.codec_s for launch in launches if launch.codec_s is not None]
        losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
        measured.append(
            EncodingCost(
                name=arm.name,
                case=arm.case.hash,
                step_s=step_s,
                sent_bytes=sent,
                bytes_per_parameter=sent / (facts.num_params * facts.trained),
                encode_s=_mean([e for e, _ in coded]),
                decode_s=_mean([d for _, d in coded]),
                loss=_mean(losses),
                pays={
                    other: rates
                    for other in beside
                    if _is_choice(arm) and other in known and other != arm.name
                    for rates in _pays(known[arm.name], known[other], measured_bps, apart_s)
                },
                exchange_s=_exchange_s(known[arm.name], apart_s),
            )
        )
    return measured


def _is_choice(arm: Arm) -> bool:
    """Return whether an arm exchanges gradients in another form than dense training."""
    return arm.case.communicate and arm.name != DENSE


def _by_turn(run: RunRecord, plan: Plan, arm: str) -> dict[int, LaunchRecord]:
    """Return the usable timed launches of an arm by turn; launches of the same turn form pairs."""
    return {
        launch.turn: launch
        for launch in run.launches
        if launch.plan == plan.hash
        and launch.arm == arm
        and launch.purpose is Purpose.TIMED
        and launch.usable
    }


def _step_s(launches: Mapping[int, LaunchRecord]) -> float | None:
    """Return the mean step time of launches in s."""
    return _mean([launch.steps.mean_s for launch in launches.values() if launch.steps is not None])


def _exchange_s(launches: Mapping[int, LaunchRecord], apart_s: float | None) -> float | None:
    """Return by how much a step is longer than a step of ranks that do not communicate, in s.

    Return None if the step also contains the work of a compressor, or if a step time is unknown.
    """
    step_s = _step_s(launches)
    coded = any(launch.codec_s is not None for launch in launches.values())
    if step_s is None or apart_s is None or coded:
        return None
    return max(0.0, step_s - apart_s)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sent(launches: Sequence[LaunchRecord]) -> float:
    return _mean([launch.sent_bytes for launch in launches if launch.sent_bytes is not None]) or 0.0


def _pays(
    codec: Mapping[int, LaunchRecord],
    dense: Mapping[int, LaunchRecord],
    here: float,
    apart_s: float | None,
) -> Iterator[Pays]:
    """Yield the break-even of a compressor against dense training.

    Yield nothing if no pair of launches was measured.
    """
    both = [(codec[t].steps, dense[t].steps) for t in sorted(codec.keys() & dense.keys())]
    more = [a.mean_s - b.mean_s for a, b in both if a is not None and b is not None]
    saved = _sent(list(dense.values())) - _sent(list(codec.values()))
    if not more:
        return
    interval = stats.t_interval(more, ALPHA)
    sending_s = list[float]()
    for launches in (dense, codec):
        exchange_s = _exchange_s(launches, apart_s)
        bytes_s = 8 * _sent(list(launches.values())) / here
        sending_s.append(bytes_s if exchange_s is None else exchange_s)
    faster = (sending_s[0] - sending_s[1]) * here / 8 if math.isfinite(here) else saved

    def at(more_s: float) -> float:
        rate = breakeven(more_s, saved, here)
        return breakeven(more_s, faster, here) if rate > here and faster > 0 else rate

    if interval.low is None or interval.high is None:
        yield Pays(rate=at(interval.mean), low=0.0, high=math.inf)
    else:
        yield Pays(rate=at(interval.mean), low=at(interval.high), high=at(interval.low))


def breakeven(more_s: float, saved_bytes: float, here: float) -> float:
    """Return the link rate in bit/s below which a compressor makes steps shorter.

    On the measured links of rate ``here``, a step takes ``more_s`` longer with the compressor.
    Return 0 if the compressor does not send fewer bytes.
    """
    if saved_bytes <= 0:
        return 0.0
    inverse = 1 / here + more_s / (8 * saved_bytes)
    # If the two terms cancel, the remainder is a rounding error and not a link rate.
    return 1 / inverse if inverse > ROUNDING / here else math.inf


#: The learning rates that are tried, as multiples of the optimizer's usual learning rate.
FACTORS = (0.2, 1.0, 5.0)


def grid(case: CaseSpec) -> list[float]:
    """Return the learning rates that are tried for a case's optimizer."""
    return [USUAL_LR[case.optimizer] * factor for factor in FACTORS]


@dataclass(frozen=True, kw_only=True)
class TunedLoss:
    """The lowest loss of a compressor with its optimizer, and the lowest loss of dense training.

    ``lr`` is the learning rate with the lowest loss. ``at_edge`` says that it is the first or last
    of the rates that were tried, so another rate may be better. ``diverged`` lists the rates at
    which no finite loss was reached.
    """

    name: str
    optimizer: str
    lr: float
    loss: float
    at_edge: bool
    diverged: tuple[float, ...]
    dense_lr: float | None
    dense_loss: float | None


def best(run: RunRecord, plan: Plan) -> list[TunedLoss]:
    """Return the lowest loss of each compressor with a finite loss, in the order of the plan."""
    pairs = dict.fromkeys((arm.case.compressor, arm.case.optimizer) for arm in plan.arms)
    lowest = []
    for codec, optimizer in pairs:
        losses = _losses(run, plan, codec, optimizer)
        if codec is None or not any(loss is not None for loss in losses.values()):
            continue
        beside = Optimizer.ADAMW if optimizer is Optimizer.FROZEN_ADAM else optimizer
        dense = _losses(run, plan, None, beside)
        lr, loss = _least(losses) or (0.0, 0.0)
        dense_lr, dense_loss = _least(dense) or (None, None)
        lowest.append(
            TunedLoss(
                name=codec,
                optimizer=optimizer,
                lr=lr,
                loss=loss,
                at_edge=lr in (min(losses), max(losses)),
                diverged=tuple(rate for rate, left in losses.items() if left is None),
                dense_lr=dense_lr,
                dense_loss=dense_loss,
            )
        )
    return lowest


def untrained(run: RunRecord, plan: Plan) -> list[str]:
    """Return the compressors of the plan that have no finite loss at any learning rate."""
    shown = {lowest.name for lowest in best(run, plan)}
    return [
        c for c in dict.fromkeys(arm.case.compressor for arm in plan.arms) if c and c not in shown
    ]


def _least(losses: dict[float, float | None]) -> tuple[float, float] | None:
    """Return the learning rate with the lowest loss, and that loss, or None if no loss is known."""
    pairs = [(loss, lr) for lr, loss in losses.items() if loss is not None]
    if not pairs:
        return None
    loss, lr = min(pairs)
    return lr, loss


def _losses(
    run: RunRecord, plan: Plan, codec: str | None, optimizer: str
) -> dict[float, float | None]:
    """Return the loss by learning rate; it is None if no finite loss was reached."""
    by_rate: dict[float, float | None] = {}
    for arm in plan.arms:
        if (arm.case.compressor, arm.case.optimizer) == (codec, optimizer):
            by_rate[arm.case.lr] = _loss(
                [launch for launch in run.launches if _trained(launch, plan, arm.name)]
            )
    return by_rate


def _trained(launch: LaunchRecord, plan: Plan, arm: str) -> bool:
    """Return whether this is a calibration launch or a timed launch of the arm."""
    trained = launch.purpose in (Purpose.PILOT, Purpose.TIMED)
    return launch.plan == plan.hash and launch.arm == arm and trained


def _loss(launches: Sequence[LaunchRecord]) -> float | None:
    losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
    return sum(losses) / len(losses) if losses else None
