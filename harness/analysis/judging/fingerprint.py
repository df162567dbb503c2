"""The fingerprint of a run: what must be alike before two figures may be compared.

Versions of software are not in it: they are what one compares; they are shown as differences.
"""

from collections.abc import Mapping, Sequence

from harness.base.documents import Json
from harness.host.environment import changes_speed
from harness.record import RunRecord

#: Fields that older references still name, for settings that are gone.
_RETIRED = ("tune_loop_thread",)


def fingerprint(run: RunRecord) -> Mapping[str, str]:
    """Hardware class, power cap, engine, and the environment that can change speed."""
    facts = {"hardware": run.machine.hardware_class, "engine": run.settings.engine}
    if run.machine.power_limit_w is not None:
        facts["power_limit_w"] = str(run.machine.power_limit_w)
    facts |= {k: v for k, v in run.environment.items() if changes_speed(k)}
    return facts


def as_items(fields: Mapping[str, str]) -> tuple[str, ...]:
    """``key=value`` each, as a references file holds them."""
    return tuple(f"{k}={v}" for k, v in sorted(fields.items()))


def differing(wanted: Sequence[str], run: RunRecord) -> list[str]:
    """Fields in which a run is not as wanted, ``key: wanted | here``; [] when nothing is asked."""
    if not wanted:
        return []
    asked = dict(item.partition("=")[::2] for item in wanted)
    recorded = {k: v for k, v in asked.items() if k not in _RETIRED}
    recorded = {k: v for k, v in recorded.items() if not k.isupper() or changes_speed(k)}
    return between(recorded, fingerprint(run))


def between(a: Mapping[str, Json], b: Mapping[str, Json]) -> list[str]:
    """Fields in which two fingerprints differ, ``key: a | b``."""
    return [
        f"{k}: {a.get(k, '-')} | {b.get(k, '-')}" for k in sorted({*a, *b}) if a.get(k) != b.get(k)
    ]
