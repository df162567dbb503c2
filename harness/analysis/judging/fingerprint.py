"""The fingerprint of a run: the settings that must be equal before two results are compared.

Software versions are not part of it, because users often compare versions. Different versions are
reported instead.
"""

from collections.abc import Mapping, Sequence

from harness.base.documents import Json
from harness.cases import Device
from harness.host import fabric
from harness.host.environment import changes_speed
from harness.record import RunRecord

#: Fields of older references whose settings no longer exist.
_RETIRED = ("tune_loop_thread",)


def fingerprint(run: RunRecord) -> Mapping[str, str]:
    """Return the settings of a run that must be equal for comparisons, as text by key.

    They are the hardware class, the engine, the power limit, the fabric, and the environment
    variables that can change the speed. ``fabric`` describes the links between GPUs. ``transport``
    is the transport that NCCL chose, if a sweep of the fabric recorded it.
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
    """Return the fields as sorted ``key=value`` items, the format of a references file."""
    return tuple(f"{key}={field}" for key, field in sorted(fields.items()))


def differing(wanted: Sequence[str], run: RunRecord) -> list[str]:
    """Return the fields in which a run differs from the wanted items, as ``key: wanted | here``."""
    if not wanted:
        return []
    asked = dict(item.partition("=")[::2] for item in wanted)
    recorded = {key: value for key, value in asked.items() if key not in _RETIRED}
    recorded = {
        key: value for key, value in recorded.items() if not key.isupper() or changes_speed(key)
    }
    return between(recorded, fingerprint(run))


def between(a: Mapping[str, Json], b: Mapping[str, Json]) -> list[str]:
    """Return the fields in which two fingerprints differ, as ``key: a | b``.

    An unknown fabric differs from every fabric, including another unknown one. A transport that
    only one of the two fingerprints contains is not counted as a difference.
    """
    keys = sorted({*a, *b} - ({"transport"} - ({*a} & {*b})))
    return [
        f"{key}: {a.get(key, '-')} | {b.get(key, '-')}"
        for key in keys
        if a.get(key) != b.get(key) or (key == "fabric" and fabric.is_unknown(str(a[key])))
    ]
