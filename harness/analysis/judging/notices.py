"""Notices about a run that change no verdict: memory leaks, irreproducible losses, slow devices."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from harness.analysis.judging import biases
from harness.analysis.judging.contrast_data import timed
from harness.analysis.judging.question import Caveat, Severity
from harness.cases import CaseSpec, Device, Plan, StandIn
from harness.host import environment
from harness.host.admission import Level
from harness.record import UNCHECKED, LaunchRecord, Purpose, RunRecord
from harness.record.fabric import swept
from harness.record.launch import loads

#: Growth of memory above which it is reported, in bytes per step. An allocator that has not yet
#: reached its final size grows by less.
LEAK_BYTES = 65_536
#: Smallest number of timed steps of a launch for which growth is reported. In a shorter launch, an
#: allocator may not reach its final size.
LEAK_STEPS = 20
#: An expert is reported if its load is at least this multiple of the load with an even
#: distribution. The other experts wait for an expert with a higher load.
OVERLOADED = 2.0
#: If the whole interval of an efficiency lies above this value, the result is reported as more than
#: linear.
SUPERLINEAR = 1.05
#: What stands in for hardware if ranks only share cores.
CROWDED = {StandIn.OVERSUBSCRIBED}
#: Ratio of a full frame's payload to its bytes on the wire (MTU 1500, TCP with time stamps).
PAYLOAD_SHARE = 0.956
#: Largest accepted relative deviation of an emulated link's rate from its stated rate.
SHAPED_OFF = 0.06


def overloaded(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    """Yield a sentence on the layer with the most overloaded expert, with advice."""
    loaded = [(x, loads(x.ranks)) for x in launches]
    worst = [
        (max(load) * len(load) / sum(load), name, x)
        for x, of in loaded
        for name, load in of.items()
    ]
    if worst and (busiest := max(worst, key=lambda w: w[0]))[0] >= OVERLOADED:
        times, name, launch = busiest
        yield (
            f"the busiest expert of {name} gets {times:.1f} times its even share of tokens, and"
            f" {launch.dropped_share:.0%} of all choices exceed the capacity of an expert:"
            " increase the weight of the router's balance loss or the capacity (model options)"
        )


def findings(run: RunRecord, *, load: bool = True) -> list[Caveat]:
    """Return the notices of a run, without duplicates.

    ``load`` says whether background load before the run is included.
    """
    by_code = {
        "unfit_host": _unfit(run, load=load),
        "oversubscribed": _oversubscribed(run),
        "superlinear": _superlinear(run),
        "memory_grows": _memory(run),
        "not_checked": _unchecked(run),
        "not_reproducible": _losses(run),
        "gpu_state": _gpus(run),
        "slower_clocks": _clocks(run),
        "switched_off": environment.switched_off(
            run.environment, infiniband=run.machine.infiniband, num_gpus=run.machine.num_gpus
        ),
        "shaped_links": shaped(run),
        "slow_device": (device.sentence for device in biases.slow_devices(run)),
        "unchained": _unchained(run),
    }
    notes = (
        Caveat(code=code, severity=Severity.NOTES, sentence=sentence)
        for code, of_code in by_code.items()
        for sentence in of_code
    )
    return list({note.sentence: note for note in notes}.values())


def sentences(run: RunRecord, *, load: bool = True) -> list[str]:
    """Return the sentences of ``findings``."""
    return [caveat.sentence for caveat in findings(run, load=load)]


def _oversubscribed(run: RunRecord) -> Iterator[str]:
    """Yield a sentence on world sizes of real models with more ranks than cores."""
    cases = [arm.case for plan in run.plans for arm in plan.arms]
    worlds = {case.world_size: case.world for case in cases if run.stand_ins(case) == CROWDED}
    if worlds:
        sizes = ", ".join(worlds[size] for size in sorted(worlds))
        yield (
            f"{sizes}: there are more ranks than cores, so these sizes count as simulated and no"
            " threshold for hardware judges them"
        )


def _unchecked(run: RunRecord) -> Iterator[str]:
    """Yield a sentence on each case some of whose results rounding alone moves far.

    The correctness check cannot distinguish them from the results of an incorrect run.
    """
    for case, gate in run.gates.items():
        names = dict.fromkeys(
            check.name for rank in gate.ranks for check in rank.checks if UNCHECKED in check.detail
        )
        cases = run.cases_by_hash.get(case, ())
        if names and cases:
            yield (
                f"{cases[0].id}: not checked: {', '.join(names)}, which rounding alone moves as far"
                " as an incorrect run; all other checks apply"
            )


#: Lower clocks of a subject are reported if they lie below its baseline's by at least this share.
SLOWER_CLOCKS = 0.005


def _clocks(run: RunRecord) -> Iterator[str]:
    """Yield a sentence on each subject whose clocks were lower than its baseline's.

    A possible cause is a chassis whose power or cooling is not sufficient for all devices.
    """
    for plan in run.plans:
        for contrast in plan.contrasts:
            if contrast.metric != "efficiency" or len(contrast.baseline) != 1:
                continue
            subject, base = (
                _mean_clock(run, plan, name) for name in (contrast.subject, contrast.baseline[0])
            )
            if subject and base and 1 - subject / base > SLOWER_CLOCKS:
                case = plan.arm(contrast.subject).case.brief
                yield (
                    f"{case}: its GPUs ran at {subject:.0f} MHz, and its baseline's GPUs at"
                    f" {base:.0f} MHz; lower clocks reduced the speed by {1 - subject / base:.1%}"
                )


def _mean_clock(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Return the mean SM clock of an arm's devices over its timed launches, in MHz, or None."""
    clocks = [
        gpu.mean_clock_mhz
        for launch in timed(run, plan)
        if launch.arm == arm
        for gpu in launch.gpus
        if gpu.mean_clock_mhz is not None
    ]
    return fmean(clocks) if clocks else None


def _unfit(run: RunRecord, *, load: bool) -> Iterator[str]:
    """Yield the problems of the host that admission found before the run, with advice."""
    for finding in run.admission:
        if finding.level is Level.BAD and (load or finding.check != "load"):
            yield finding.text + (f": {finding.advice}" if finding.advice else "")


def _measured(run: RunRecord) -> Iterator[tuple[CaseSpec, list[LaunchRecord]]]:
    """Yield the case of each arm in all plans, together with the arm's timed launches."""
    for plan in run.plans:
        for arm in plan.arms:
            launches = timed(run, plan, None)
            yield (
                arm.case,
                [
                    launch
                    for launch in launches
                    if launch.arm == arm.name and launch.steps is not None
                ],
            )


def _superlinear(run: RunRecord) -> Iterator[str]:
    """Yield a sentence on each efficiency above linear scaling.

    Caches or a slow baseline may be the reason.
    """
    for verdict in run.verdicts:
        surely = verdict.low is not None and verdict.low > SUPERLINEAR
        if verdict.metric == "efficiency" and verdict.against in ("plain", "wrapped") and surely:
            yield (
                f"{verdict.case}: scaling is more than linear (at least {verdict.low:.3g}), because"
                f" a sample takes longer in the {verdict.against} baseline; check that both run the"
                " same training"
            )


def _memory(run: RunRecord) -> Iterator[str]:
    """Yield sentences on cases whose memory grows in every launch, and on overloaded experts."""
    for case, launches in _measured(run):
        slopes = [
            launch.growth
            for launch in launches
            if launch.growth and launch.steps and launch.steps.count >= LEAK_STEPS
        ]
        grows = [slope for slope in slopes if slope.low > LEAK_BYTES and slope.steady >= 0.5]
        if len(launches) >= 2 and len(grows) == len(launches):
            rate = median([growth.slope for growth in grows])
            yield (
                f"{case.id}: memory grows by {rate / 1e3:.0f} kB in each step of every launch, so"
                " longer training needs more memory than was measured"
            )
        for notice in overloaded(launches[-1:]):
            yield f"{case.id}: {notice}"


def _losses(run: RunRecord) -> Iterator[str]:
    """Yield sentences on arms whose losses differ between launches.

    Each such arm on CPUs gets a sentence. Arms on GPUs are only counted in one sentence.
    """
    unlike = [
        case for case, launches in _measured(run) if len({launch.losses for launch in launches}) > 1
    ]
    on_gpus = [case for case in unlike if case.device is not Device.CPU]
    for case in unlike:
        if case not in on_gpus:
            yield f"{case.id}: not reproducible: losses differ between launches"
    if on_gpus:
        yield f"losses of {len(on_gpus)} arms differ between launches; GPU atomics can cause this"


def _gpus(run: RunRecord) -> Iterator[str]:
    """Yield a sentence on each GPU that was throttled or lost."""
    counts: Counter[str] = Counter()
    for launch in run.launches:
        for gpu in launch.gpus:
            if states := [*gpu.throttle, *(["lost"] if gpu.lost else [])]:
                where = f" of node {gpu.node}" if gpu.node else ""
                counts[f"GPU {gpu.index}{where} ({gpu.name}): {', '.join(states)}"] += 1
    for gpu_states, count in counts.items():
        yield f"{gpu_states} in {count} launches"


def _unchained(run: RunRecord) -> Iterator[str]:
    if run.complete and run.launches and not run.head:
        yield (
            f"the record has no hash chain (schema {run.schema}), so it cannot show whether"
            " launches were left out"
        )


def shaped(run: RunRecord) -> list[str]:
    """Return a sentence for each emulated network on the rate that its links carried.

    The sentence warns if the rate lies too far below or above the stated rate.
    """
    sentences = []
    for sweep in swept(run.fabric):
        if sweep.operation != "all_reduce" or set(sweep.nodes) != {1} or len(sweep.nodes) < 2:
            continue
        stated = sweep.rows[0].link_mbit
        if stated is None or "slow_links" in sweep.network:
            continue
        carried = median(list(sweep.bus_bps())) * 8 / 1e6
        off = carried / (stated * PAYLOAD_SHARE) - 1
        text = (
            f"emulated links of {stated:g} Mbit/s carry {carried:.4g} Mbit/s ({off:+.1%} from their"
            " nominal payload)"
        )
        bad = abs(off) > SHAPED_OFF and stated <= 1000
        sentences.append(text + ("; results do not hold for the stated rate" if bad else ""))
    return sentences


def alike(run: RunRecord) -> dict[tuple[str, str], bool]:
    """Return for each plan and arm whether all of its launches had bit-identical losses."""
    arms: dict[tuple[str, str], set[str]] = {}
    for launch in run.launches:
        if launch.purpose is Purpose.TIMED and launch.steps is not None:
            arms.setdefault((launch.plan, launch.arm), set()).add(launch.losses)
    return {arm: len(digests) == 1 for arm, digests in arms.items()}


def reproducible(run: RunRecord) -> str:
    """Return a sentence on how many arms had reproducible losses, and how many were compared.

    Losses are compared with a reference training of the harness.
    """
    arms = alike(run)
    same = sum(arms.values())
    message = f"{same} of {len(arms)} arms had bit-identical losses in all launches"
    checked = {
        (launch.plan, launch.arm)
        for launch in run.launches
        if launch.purpose is Purpose.TIMED and launch.steps is not None and launch.compared
    }
    return f"{message}; {len(checked)} of {len(arms)} arms were compared with a reference training"
