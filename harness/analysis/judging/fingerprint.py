"""The fingerprint of a run: what must be equal before two figures may be compared.

Versions of software are not in it: they are what one compares; they are shown as differences.
"""

from collections.abc import Mapping, Sequence

from harness.base.documents import Json
from harness.cases import Device
from harness.host import fabric
from harness.host.environment import changes_speed
from harness.record import RunRecord

#: Fields that older references still name, for settings that are gone.
_RETIRED = ("tune_loop_thread",)


def fingerprint(run: RunRecord) -> Mapping[str, str]:
    """Hardware class, fabric, power cap, engine, and the environment that can change speed.

    ``fabric`` is what joins the GPUs, ``transport`` what NCCL used of it, if a sweep measured it.
    """
    facts = {"hardware": run.machine.hardware_class, "engine": run.settings.engine}
    if run.machine.power_limit_w is not None:
        facts["power_limit_w"] = str(run.machine.power_limit_w)
    if run.settings.device is Device.CUDA and sum(run.settings.nodes) > 1:
        known = run.machine.fabric
        nodes = len(run.settings.nodes)
        facts["fabric"] = fabric.UNKNOWN if known is None else known.identity(nodes)
        if transports := sorted({row.transport for row in run.fabric if row.transport}):
            facts["transport"] = "; ".join(transports)
    facts |= {key: value for key, value in run.environment.items() if changes_speed(key)}
    return facts


def as_items(fields: Mapping[str, str]) -> tuple[str, ...]:
    """``key=value`` each, as a references file holds them."""
    return tuple(f"{key}={field}" for key, field in sorted(fields.items()))


def differing(wanted: Sequence[str], run: RunRecord) -> list[str]:
    """Fields in which a run is not as wanted, ``key: wanted | here``; [] when nothing is asked."""
    if not wanted:
        return []
    asked = dict(item.partition("=")[::2] for item in wanted)
    recorded = {key: value for key, value in asked.items() if key not in _RETIRED}
    recorded = {
        key: value for key, value in recorded.items() if not key.isupper() or changes_speed(key)
    }
    return between(recorded, fingerprint(run))


def between(a: Mapping[str, Json], b: Mapping[str, Json]) -> list[str]:
    """Fields in which two fingerprints differ, ``key: a | b``; an unknown fabric equals no other
    one, and not itself. A transport that only one of the runs has measured is no difference.
    """
    keys = sorted({*a, *b} - ({"transport"} - ({*a} & {*b})))
    return [
        f"{key}: {a.get(key, '-')} | {b.get(key, '-')}"
        for key in keys
        if a.get(key) != b.get(key) or (key == "fabric" and fabric.is_unknown(str(a[key])))
    ]
