"""Compare machines on the cases that all of them ran, per device and in total.

runs -> Sides (machines, with the rates that their devices reach) -> Entries (a case on a side)
     -> Totals (the largest world of a scaling sweep on each side) -> HardwareComparison

A side is the machine of one run. Ratios are relative to the first side. Means include only cases
that every side ran.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.compare import (
    Compared,
    Reading,
    differing,
    key_of,
    load_of,
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
#: Number of samples or tokens to which a price refers.
MILLION = 1e6
#: Metric of the energy of a sample, read from the counters of the devices.
ENERGY = "energy_per_sample"
#: Letters that name the sides, in their order.
LETTERS = string.ascii_uppercase


@dataclass(frozen=True, kw_only=True)
class Side:
    """The machine of one run.

    ``price`` is the price of one hour of all its devices, in any currency. ``matmul_flops`` maps a
    dtype to the FLOP/s that one device reached in a matrix product, and ``peak_flops`` to the peak
    FLOP/s in its data sheet. ``copy_bps`` is the rate of a copy in device memory, and ``bus_bps``
    the bus rate of an all-reduce. Both are in bytes/s.
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
    """One case on one side. A field is None if it is unknown.

    ``throughput`` and ``per_device`` are in samples/s. ``ratio`` is the metric relative to the
    first side, and [``low``, ``high``] its 95 % interval. ``attained`` is the ratio of the FLOP/s
    in training and in a matrix product on the same device. ``headroom`` is the share of device
    memory that stays free. ``energy_j`` is the energy of a sample and ``energy_token_j`` the energy
    of a token, in joules. ``price`` is the price of a million samples, and ``price_tokens`` the
    price of a million tokens. ``epoch_s`` is the time of an epoch in seconds. ``lost_ns`` maps each
    term of a mean step to its growth over the baseline, in nanoseconds.
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
    """The largest world of a scaling sweep on one side.

    ``alone`` is the throughput of a single device, and ``together`` the throughput of all devices
    of the world. ``share`` is ``together`` / (``alone`` x ``devices``). ``ratio`` is ``together``
    relative to the first side, and ``ratio_alone`` is ``alone`` x ``devices`` relative to the first
    side.
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
    """The geometric mean of one side relative to the first, over the cases that every side ran.

    A case has the same number of devices on every side, so this is a comparison per device.
    ``joule`` is the corresponding mean of samples per joule, or None if devices do not report their
    energy. ``price_factor`` is the number of devices of this side that cost as much as one device
    of the first side, or None if a price is unknown. ``reading`` is the interpretation of the
    interval.
    """

    side: str
    mean: float
    low: float | None
    high: float | None
    reading: Reading = Reading.UNDECIDED
    joule: "Mean | None" = None
    price_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class HardwareComparison:
    """The comparison of several machines on one metric.

    ``num_common`` is the number of cases that every side ran, and ``missing`` lists the others.
    ``not_compared`` lists cases that may not be compared, with reasons. ``differs`` lists
    differences between the sides, for example in their software.
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
    """Compare two or more runs on one metric. ``prices`` are the prices of an hour of each machine.

    Raise SpecError if all cases are simulated, because they show nothing about hardware.
    """
    cases = [
        bool(run.stand_ins(arm.case)) for run in runs for plan in run.plans for arm in plan.arms
    ]
    if cases and all(cases):
        raise SpecError(
            "the runs have only simulated cases (paced, emulated), which show nothing about"
            " hardware",
            expected="runs with real compute",
            fix="pytest suites/ -k 'not paced'",
        )
    if len(runs) > len(LETTERS):
        raise SpecError(
            f"{len(runs)} runs were given",
            expected=f"at most {len(LETTERS)} runs, named {LETTERS}",
            fix="scaleproof compare machines RUN_A RUN_B",
        )
    first, *others = runs
    against = [side_by_side(first, run, metric, hardware=True) for run in (first, *others)]
    sides = [
        _side(name, run, price)
        for name, run, price in zip(names(len(runs)), runs, _padded(prices, runs), strict=True)
    ]
    rows = [{key_of(row.case, True): row for row in comparison.rows} for comparison in against]
    taken = [side_by_side(first, run, ENERGY, hardware=True) for run in (first, *others)]
    energies = [{key_of(row.case, True): row for row in comparison.rows} for comparison in taken]
    ran = [{key for key, compared in of_side.items() if compared.b is not None} for of_side in rows]
    common = set.intersection(*ran)
    every = dict.fromkeys(key for of_side in rows for key in of_side)
    refused = dict.fromkeys(text for comparison in against for text in comparison.not_compared)
    measured = [_entries(side, run, r) for side, run, r in zip(sides, runs, rows, strict=True)]
    return HardwareComparison(
        metric=metric,
        sides=tuple(sides),
        entries=tuple(
            e for key in every for of_side in measured if (e := of_side.get(key)) is not None
        ),
        totals=tuple(_totals(sides, runs)),
        num_common=len(common),
        means=tuple(_means(sides, rows, common, energies, metric)),
        missing=tuple(_missing(every, rows, ran, sides)),
        not_compared=tuple(refused),
        differs=tuple(dict.fromkeys(_differing(sides, runs))),
    )


def names(count: int) -> list[str]:
    """Return the names of the first sides: A, B, C, ..."""
    return list(LETTERS[:count])


def ceilings(run: RunRecord) -> list[Ceiling]:
    """Return the ceilings (best rates) that were measured on a run's devices."""
    gates = [launch for launch in run.launches if launch.purpose is Purpose.GATE]
    return [rank.ceiling for gate in gates for rank in gate.ranks if rank.ceiling is not None]


def _padded(prices: Sequence[float | None], runs: Sequence[RunRecord]) -> list[float | None]:
    return [*prices, *[None] * (len(runs) - len(prices))]


def _side(name: str, run: RunRecord, price: float | None) -> Side:
    measured = ceilings(run)
    matmul = {
        dtype: max(ceiling.matmul_flops for ceiling in measured if ceiling.dtype == dtype)
        for dtype in sorted({ceiling.dtype for ceiling in measured})
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
        copy_bps=max((ceiling.copy_bps for ceiling in measured), default=None),
        bus_bps=_largest_bus(reduced),
    )


def _largest_bus(reduced: Sequence[Swept]) -> float | None:
    """Return the all-reduce bus rate of the largest world in the bandwidth sweep, or None."""
    worlds = sorted(reduced, key=lambda swept: sum(swept.nodes))
    return median(worlds[-1].bus_bps()) if worlds else None


def _entries(side: Side, run: RunRecord, rows: Mapping[str, Compared]) -> dict[str, MachineEntry]:
    out: dict[str, MachineEntry] = {}
    lost = {rung.arm.case.hash: rung.losses.excess_ns for rung in rungs(run) if not rung.refused}
    for plan in run.plans:
        of_case = {point.case: point for point in points(run, plan)}
        for arm in plan.arms:
            key = key_of(arm.case, True)
            compared = rows.get(key)
            row = arm_row(run, plan, arm)
            if compared is None or compared.b is None or row.throughput is None or key in out:
                continue
            terms = {term: float(value) for term, value in lost.get(arm.case.hash, {}).items()}
            out[key] = _entry(side, plan, row, compared, of_case.get(arm.case.id), terms)
    return out


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
    """Return the bytes of memory that a rank may use at most, or None."""
    if case.device is Device.CUDA:
        return None if machine.gpu_memory_gib is None else machine.gpu_memory_gib * 2**30
    return machine.memory_gib * 2**30 / max(case.nodes)


def _totals(sides: Sequence[Side], runs: Sequence[RunRecord]) -> Iterator[Total]:
    """Yield the largest world of every scaling sweep that has a plain baseline.

    Its throughput is compared with the sum of the throughputs of its single devices. Machines may
    have different numbers of devices. Each machine is compared with all the devices that it has.
    """
    seen: dict[str, list[Total]] = {}
    for side, run in zip(sides, runs, strict=True):
        for plan in run.plans:
            if any(run.stand_ins(arm.case) for arm in plan.arms):
                continue
            largest = max(
                points(run, plan, "plain"), key=lambda point: point.world_size, default=None
            )
            if largest is None or largest.world_size == 1:
                continue
            alone = largest.throughput / largest.speedup
            case = next(arm.case for arm in plan.arms if arm.case.id == largest.case)
            ladder = case.family + case.extras
            before = next((total for total in seen.get(ladder, ()) if total.side == "A"), None)
            summed = alone * largest.world_size
            seen.setdefault(ladder, []).append(
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
    for totals in seen.values():
        yield from totals


def _means(
    sides: Sequence[Side],
    rows: Sequence[Mapping[str, Compared]],
    common: set[str],
    energies: Sequence[Mapping[str, Compared]],
    metric: str,
) -> Iterator[Mean]:
    """Yield the mean of each side except the first, or nothing if no case is common to all."""
    more = METRICS[metric].more_is_better
    for number, side in enumerate(sides[1:], 1):
        mean, low, high = mean_ratio(rows[number][key] for key in common)
        if mean is None:
            continue
        yield Mean(
            side=side.name,
            mean=mean,
            low=low,
            high=high,
            reading=_reading(low, high, more),
            joule=_per_joule(side, energies[number], common),
            price_factor=_price_factor(sides[0], side) if more else None,
        )


def _reading(low: float | None, high: float | None, more: bool) -> Reading:
    return Reading.TOO_FEW if low is None or high is None else reading_of(low, high, more)


def _per_joule(side: Side, taken: Mapping[str, Compared], common: set[str]) -> Mean | None:
    """Return samples per joule relative to the first side, or None.

    This is the reciprocal of the ratio of energies per sample, with its interval.
    """
    of_common = [taken[key] for key in sorted(common) if key in taken]
    energy, low, high = mean_ratio(of_common)
    if energy is None or sum(row.ratio is not None for row in of_common) < len(common):
        return None
    least = None if high is None else 1 / high
    most = None if low is None else 1 / low
    reading = _reading(least, most, more=True)
    return Mean(side=side.name, mean=1 / energy, low=least, high=most, reading=reading)


def _price_factor(first: Side, other: Side) -> float | None:
    """Return how many devices of the other side cost as much per hour as one of the first side.

    Return None if a price is unknown.
    """
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
        lacking = [side.name for side, have in zip(sides, ran, strict=True) if key not in have]
        if lacking:
            case = next(of_side[key].case for of_side in rows if key in of_side)
            yield f"{case.id}: not measured on {', '.join(lacking)}"


def _differing(sides: Sequence[Side], runs: Sequence[RunRecord]) -> Iterator[str]:
    for side, run in zip(sides[1:], runs[1:], strict=True):
        both = f"A | {side.name}: " if len(sides) > 2 else ""
        differences = (*differing(runs[0], run), *load_of(runs[0], run))
        yield from (f"{both}{text}" for text in differences)
