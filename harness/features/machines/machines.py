"""Machines side by side on the cases that they ran, device for device and in all.

    runs -> Sides (what they are, what their devices reach at most) -> Entries (a case on a side)
         -> Totals (a ladder's largest world on each side) -> HardwareComparison

Ratios are of one side over the first; nothing is averaged that not every side ran.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from harness.analysis.compare import (
    Compared,
    Reading,
    differing,
    key_of,
    mean_ratio,
    reading_of,
    side_by_side,
)
from harness.analysis.judging.points import points
from harness.analysis.ladder import ArmRow, arm_row
from harness.analysis.rungs import rungs
from harness.base.errors import SpecError
from harness.cases import CaseSpec, Device, Plan
from harness.cases.metrics import METRICS
from harness.host.devices import peaks
from harness.host.machine import Machine
from harness.record import Ceiling, Purpose, RunRecord, ScalingPoint, Swept, Term
from harness.record.fabric import swept

HOUR_S = 3600.0
#: Prices are told for so many samples or tokens.
MILLION = 1e6
#: What sides are called.
LETTERS = string.ascii_uppercase


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run's machine. Prices are of an hour of all its devices, in whatever money.

    ``matmul_flops`` maps a dtype to the FLOP/s that one device was seen to reach, ``peak_flops`` to
    its data sheet's; ``copy_bps`` and ``bus_bps`` are B/s in its memory and of an all-reduce.
    """

    name: str
    run: str
    machine: Machine
    num_devices: int
    torch: str
    price: float | None
    matmul_flops: Mapping[str, float]
    peak_flops: Mapping[str, float]
    copy_bps: float | None
    bus_bps: float | None


@dataclass(frozen=True, kw_only=True)
class MachineEntry:
    """One case on one side, None where it is not known.

    ``per_device`` in samples/s; ``ratio`` is of the metric over the first side's, with its 95 %
    interval. ``attained`` is FLOP/s over what the device's matrix product reaches, ``headroom`` the
    share of a device's memory that is left. ``energy_j`` and prices are per sample and per token,
    prices per million. ``lost_ns`` is each term's growth against its baseline in a mean step.
    """

    side: str
    case: CaseSpec
    throughput: float | None
    per_device: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reading: Reading | None
    point: ScalingPoint | None
    step_s: float | None
    mfu: float | None
    attained: float | None
    peak_bytes: float | None
    headroom: float | None
    energy_j: float | None
    energy_token_j: float | None
    price: float | None
    price_tokens: float | None
    epoch_s: float | None
    lost_ns: Mapping[Term, float]


@dataclass(frozen=True, kw_only=True)
class Total:
    """A ladder's largest world on one side: ``alone`` is one device, ``together`` all that it has.

    ``share`` is ``together`` over ``alone`` times the devices; ``ratio`` of ``together`` over the
    first side's, ``ratio_alone`` of the sums of their devices.
    """

    side: str
    ladder: str
    devices: int
    alone: float
    together: float
    share: float
    ratio: float | None
    ratio_alone: float | None


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Geometric mean of one side over the first, over the cases that every side ran.

    Cases have as many devices on every side, so it is per device. ``per_joule`` is the same of
    samples a joule, without an interval; ``price_factor`` times ``mean`` is what the same money
    gives, None where a price is not known. ``reading`` is what the interval says.
    """

    side: str
    mean: float
    low: float | None
    high: float | None
    reading: Reading = Reading.UNDECIDED
    per_joule: float | None = None
    price_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class HardwareComparison:
    """``missing`` are the cases that some side did not run, ``not_compared`` those that may not be
    compared, and why; ``differs`` only what is not the same on all sides.
    """

    metric: str
    sides: tuple[Side, ...]
    entries: tuple[MachineEntry, ...]
    totals: tuple[Total, ...]
    num_common: int
    means: tuple[Mean, ...]
    missing: tuple[str, ...]
    not_compared: tuple[str, ...]
    differs: tuple[str, ...]


def compare_hardware(
    runs: Sequence[RunRecord], metric: str, prices: Sequence[float | None] = ()
) -> HardwareComparison:
    """Two or more runs. Stand-ins are refused: they say nothing of hardware."""
    cases = [bool(run.stand_ins(a.case)) for run in runs for p in run.plans for a in p.arms]
    if cases and all(cases):
        raise SpecError(
            "the runs have only stand-ins (paced, emulated), which say nothing about hardware",
            expected="runs with real compute",
            fix="pytest suites/ -k 'not paced'",
        )
    if len(runs) > len(LETTERS):
        raise SpecError(
            f"{len(runs)} runs at once",
            expected=f"{len(LETTERS)} at most: {LETTERS}",
            fix="scaleproof compare-hardware RUN_A RUN_B",
        )
    first, *others = runs
    against = [side_by_side(first, run, metric, hardware=True) for run in (first, *others)]
    sides = [
        _side(name, run, price)
        for name, run, price in zip(names(len(runs)), runs, _padded(prices, runs), strict=True)
    ]
    rows = [{key_of(r.case, True): r for r in c.rows} for c in against]
    ran = [{k for k, r in of_side.items() if r.b is not None} for of_side in rows]
    common = set.intersection(*ran)
    all_keys = dict.fromkeys(k for of_side in rows for k in of_side)
    refused = dict.fromkeys(text for c in against for text in c.not_compared)
    measured = [_entries(s, run, r) for s, run, r in zip(sides, runs, rows, strict=True)]
    return HardwareComparison(
        metric=metric,
        sides=tuple(sides),
        entries=tuple(
            e for k in all_keys for of_side in measured if (e := of_side.get(k)) is not None
        ),
        totals=tuple(_totals(sides, runs)),
        num_common=len(common),
        means=tuple(_means(sides, rows, common, measured, metric)),
        missing=tuple(_missing(all_keys, rows, ran, sides)),
        not_compared=tuple(refused),
        differs=tuple(dict.fromkeys(_differing(sides, runs))),
    )


def names(count: int) -> list[str]:
    """A, B, C, ..."""
    return list(LETTERS[:count])


def ceilings(run: RunRecord) -> list[Ceiling]:
    """What the devices of a run were measured to reach."""
    gates = [x for x in run.launches if x.purpose is Purpose.GATE]
    return [r.ceiling for x in gates for r in x.ranks if r.ceiling is not None]


def _padded(prices: Sequence[float | None], runs: Sequence[RunRecord]) -> list[float | None]:
    return [*prices, *[None] * (len(runs) - len(prices))]


def _side(name: str, run: RunRecord, price: float | None) -> Side:
    measured = ceilings(run)
    matmul = {
        dtype: max(c.matmul_flops for c in measured if c.dtype == dtype)
        for dtype in sorted({c.dtype for c in measured})
    }
    on_gpus = run.settings.device is Device.CUDA
    reduced = [s for s in swept(run.fabric) if s.operation == "all_reduce" and s.bus_bps()]
    return Side(
        name=name,
        run=run.run,
        machine=run.machine,
        num_devices=sum(run.settings.nodes),
        torch=run.software.get("torch", "n/a"),
        price=price,
        matmul_flops=matmul,
        peak_flops=peaks(run.machine.gpu) if on_gpus else {},
        copy_bps=max((c.copy_bps for c in measured), default=None),
        bus_bps=_largest_bus(reduced),
    )


def _largest_bus(reduced: Sequence[Swept]) -> float | None:
    """The bus rate of the largest world that was swept."""
    worlds = sorted(reduced, key=lambda s: sum(s.nodes))
    return median(worlds[-1].bus_bps()) if worlds else None


def _entries(side: Side, run: RunRecord, rows: Mapping[str, Compared]) -> dict[str, MachineEntry]:
    entries: dict[str, MachineEntry] = {}
    lost = {r.arm.case.hash: r.losses.excess_ns for r in rungs(run) if not r.refused}
    for plan in run.plans:
        of_case = {p.case: p for p in points(run, plan)}
        for arm in plan.arms:
            key = key_of(arm.case, True)
            compared = rows.get(key)
            row = arm_row(run, plan, arm)
            if compared is None or compared.b is None or row.throughput is None or key in entries:
                continue
            terms = {t: float(e) for t, e in lost.get(arm.case.hash, {}).items()}
            entries[key] = _entry(side, plan, row, compared, of_case.get(arm.case.id), terms)
    return entries


def _entry(
    side: Side,
    plan: Plan,
    row: ArmRow,
    compared: Compared,
    point: ScalingPoint | None,
    lost_ns: Mapping[Term, float],
) -> MachineEntry:
    case = row.case
    first = side.name == "A"
    facts = row.described.facts if row.described else None
    tokens = facts.tokens_per_sample if facts and facts.tokens_per_sample > 1 else None
    ceiling = side.matmul_flops.get(case.dtype)
    hour = None if side.price is None else side.price * case.world_size / side.num_devices
    rate = row.throughput
    price = None if hour is None or not rate else hour / HOUR_S / rate * MILLION
    memory = _memory_bytes(side.machine, case)
    return MachineEntry(
        side=side.name,
        case=case,
        throughput=rate,
        per_device=None if rate is None else rate / case.world_size,
        ratio=None if first else compared.ratio,
        low=None if first else compared.low,
        high=None if first else compared.high,
        reading=None if first else compared.reading,
        point=point,
        step_s=row.step_s,
        mfu=row.mfu,
        attained=row.flops / ceiling if row.flops and ceiling else None,
        peak_bytes=row.peak_bytes,
        headroom=None if row.peak_bytes is None or memory is None else 1 - row.peak_bytes / memory,
        energy_j=row.energy_j,
        energy_token_j=row.energy_j / tokens if row.energy_j and tokens else None,
        price=price,
        price_tokens=price / tokens if price and tokens else None,
        epoch_s=plan.epoch_samples / rate if plan.epoch_samples and rate else None,
        lost_ns=lost_ns,
    )


def _memory_bytes(machine: Machine, case: CaseSpec) -> float | None:
    """What a rank may have at most."""
    if case.device is Device.CUDA:
        return None if machine.gpu_memory_gib is None else machine.gpu_memory_gib * 2**30
    return machine.memory_gib * 2**30 / max(case.nodes)


def _totals(sides: Sequence[Side], runs: Sequence[RunRecord]) -> Iterator[Total]:
    """Of every ladder that has a plain baseline: its largest world beside the sum of its devices.

    Machines with unlike numbers of devices meet here: each with all that it has.
    """
    by_case: dict[str, list[Total]] = {}
    for side, run in zip(sides, runs, strict=True):
        for plan in run.plans:
            if any(run.stand_ins(a.case) for a in plan.arms):
                continue
            largest = max(points(run, plan, "plain"), key=lambda p: p.world_size, default=None)
            if largest is None or largest.world_size == 1:
                continue
            alone = largest.throughput / largest.speedup
            case = next(a.case for a in plan.arms if a.case.id == largest.case)
            ladder = case.family + case.extras
            before = next((t for t in by_case.get(ladder, ()) if t.side == "A"), None)
            summed = alone * largest.world_size
            by_case.setdefault(ladder, []).append(
                Total(
                    side=side.name,
                    ladder=ladder,
                    devices=largest.world_size,
                    alone=alone,
                    together=largest.throughput,
                    share=largest.throughput / summed,
                    ratio=None if before is None else largest.throughput / before.together,
                    ratio_alone=None
                    if before is None
                    else summed / (before.alone * before.devices),
                )
            )
    for totals in by_case.values():
        yield from totals


def _means(
    sides: Sequence[Side],
    rows: Sequence[Mapping[str, Compared]],
    common: set[str],
    entries: Sequence[Mapping[str, MachineEntry]],
    metric: str,
) -> Iterator[Mean]:
    """Nothing where no case is common to all."""
    for side, of_side in zip(sides[1:], rows[1:], strict=True):
        mean, low, high = mean_ratio(of_side[key] for key in common)
        if mean is None:
            continue
        more = METRICS[metric].more_is_better
        reading = Reading.TOO_FEW
        if low is not None and high is not None:
            reading = reading_of(low, high, more)
        yield Mean(
            side=side.name,
            mean=mean,
            low=low,
            high=high,
            reading=reading,
            per_joule=_per_joule(entries[0], entries[sides.index(side)], common),
            price_factor=_price_factor(sides[0], side) if more else None,
        )


def _per_joule(
    first: Mapping[str, MachineEntry], other: Mapping[str, MachineEntry], common: set[str]
) -> float | None:
    """Samples a joule over the first side's; None where a device does not say what it took."""
    pairs = [
        (first[k].energy_j, other[k].energy_j) for k in sorted(common) if k in first and k in other
    ]
    known = [a / b for a, b in pairs if a and b]
    return geometric_mean(known) if known and len(known) == len(common) else None


def _price_factor(first: Side, other: Side) -> float | None:
    """Devices of the other side for the money of one of the first: they are paid by the hour."""
    if not first.price or not other.price:
        return None
    return (first.price / first.num_devices) / (other.price / other.num_devices)


def _missing(
    every: Mapping[str, None],
    rows: Sequence[Mapping[str, Compared]],
    ran: Sequence[set[str]],
    sides: Sequence[Side],
) -> Iterator[str]:
    for key in every:
        lacking = [s.name for s, have in zip(sides, ran, strict=True) if key not in have]
        if lacking:
            case = next(of_side[key].case for of_side in rows if key in of_side)
            yield f"{case.id}: not measured on {', '.join(lacking)}"


def _differing(sides: Sequence[Side], runs: Sequence[RunRecord]) -> Iterator[str]:
    for side, run in zip(sides[1:], runs[1:], strict=True):
        both = f"A | {side.name}: " if len(sides) > 2 else ""
        yield from (f"{both}{text}" for text in differing(runs[0], run))
