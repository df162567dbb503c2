"""What is worth a sentence without being a verdict: leaks, irreproducible losses, slow devices."""

from collections.abc import Iterator, Sequence
from statistics import median

from harness.analysis.judging import neighbours
from harness.analysis.judging.pairs import timed
from harness.cases import Device
from harness.host import environment
from harness.record import LaunchRecord, Purpose, RunRecord
from harness.record.fabric import swept
from harness.record.launch import loads

#: Memory growth below this a step, or seen over fewer steps, is an allocator that settles.
LEAK_BYTES, LEAK_STEPS = 65_536, 20
#: An expert that is asked so many times its even share holds up all others.
OVERLOADED = 2.0
#: Payload of a full frame over its bytes on the wire (MTU 1500, TCP with time stamps); how far a
#: shaped link may be off.
PAYLOAD_SHARE, SHAPED_OFF = 0.956, 0.06


def overloaded(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    """The layer whose busiest expert is asked far more than its even share, and what to change."""
    every = [(x, loads(x.ranks)) for x in launches]
    worst = [
        (max(load) * len(load) / sum(load), name, x) for x, of in every for name, load in of.items()
    ]
    if worst and (most := max(worst, key=lambda w: w[0]))[0] >= OVERLOADED:
        times, name, launch = most
        yield (
            f"the busiest expert of {name} is asked {times:.1f} times its even share, and"
            f" {launch.dropped_share:.0%} of all choices find no room: weigh the balance of its"
            " router more, or give experts more room (knobs of the model)"
        )


def findings(run: RunRecord) -> list[str]:
    out: list[str] = []
    unlike: list[str] = []
    for plan in run.plans:
        for arm in plan.arms:
            launches = [
                x for x in timed(run, plan, None) if x.arm == arm.name and x.steps is not None
            ]
            slopes = [
                x.growth for x in launches if x.growth and x.steps and x.steps.count >= LEAK_STEPS
            ]
            grows = [g for g in slopes if g.low > LEAK_BYTES and g.steady >= 0.5]
            if len(launches) >= 2 and len(grows) == len(launches):
                rate = median([g.slope for g in grows])
                out.append(
                    f"{arm.case.id}: memory grows {rate / 1e3:.0f} kB a step in every launch"
                )
            out += [f"{arm.case.id}: {told}" for told in overloaded(launches[-1:])]
            if len({x.losses for x in launches}) > 1:
                if arm.case.device is Device.CPU:
                    out.append(f"{arm.case.id}: not reproducible: losses differ between launches")
                else:
                    unlike.append(arm.case.id)
    if unlike:
        out.append(
            f"losses of {len(unlike)} arms differ between launches, as atomics on GPUs let them"
        )
    gpus: dict[str, int] = {}
    for launch in run.launches:
        for gpu in launch.gpus:
            states = [*gpu.throttle, *(["lost"] if gpu.lost else [])]
            if states:
                name = f"GPU {gpu.index} ({gpu.name}): {', '.join(states)}"
                gpus[name] = gpus.get(name, 0) + 1
    out += [f"{name} in {count} launches" for name, count in gpus.items()]
    out += environment.switched_off(
        run.environment, infiniband=run.machine.infiniband, num_gpus=run.machine.num_gpus
    )
    out += [*shaped(run), *(d.told for d in neighbours.slow_devices(run))]
    if run.complete and run.launches and not run.head:
        out.append(
            f"unchained (schema {run.schema}): whether launches were left out cannot be said"
        )
    return list(dict.fromkeys(out))


def shaped(run: RunRecord) -> list[str]:
    """Whether shaped links carry what they were set to: else nothing over them means much."""
    out = []
    for sweep in swept(run.fabric):
        if sweep.operation != "all_reduce" or set(sweep.nodes) != {1} or len(sweep.nodes) < 2:
            continue
        stated = sweep.rows[0].link_mbit
        if stated is None or "slow_links" in sweep.network:
            continue
        carried = median(list(sweep.bus_bps())) * 8 / 1e6
        off = carried / (stated * PAYLOAD_SHARE) - 1
        text = (
            f"emulated links of {stated:g} Mbit/s carry {carried:.4g} ({off:+.1%} of their payload)"
        )
        bad = abs(off) > SHAPED_OFF and stated <= 1000
        out.append(text + ("; results do not hold for the stated rate" if bad else ""))
    return out


def alike(run: RunRecord) -> dict[tuple[str, str], bool]:
    """Of each plan and arm: whether all of its launches gave the same losses to the bit."""
    arms: dict[tuple[str, str], set[str]] = {}
    for launch in run.launches:
        if launch.purpose is Purpose.TIMED and launch.steps is not None:
            arms.setdefault((launch.plan, launch.arm), set()).add(launch.losses)
    return {arm: len(digests) == 1 for arm, digests in arms.items()}


def reproducible(run: RunRecord) -> str:
    """In how many arms the losses are reproducible, and of how many they were compared."""
    arms = alike(run)
    same = sum(arms.values())
    told = f"equal bit for bit in all launches of {same} of {len(arms)} arms"
    checked = {
        (x.plan, x.arm)
        for x in run.launches
        if x.purpose is Purpose.TIMED and x.steps is not None and x.compared
    }
    return f"{told}; {len(checked)} of {len(arms)} compared with the harness's own training"
