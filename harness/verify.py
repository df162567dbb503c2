"""``verify``: recompute a record from its samples, offline and without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from harness import derive, verdict
from harness.codec import Json, to_doc
from harness.errors import RecordError
from harness.record import LaunchStatus, Purpose, RunRecord, load_samples

#: Derived numbers may differ by this much, relatively: summation differs by CPU and numpy.
TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was recomputed, and every difference found."""

    num_launches: int
    num_samples: int
    num_verdicts: int
    differences: tuple[str, ...]


def verify(run: RunRecord, folder: Path) -> Verification:
    """Recompute launches from samples and verdicts from launches; list what differs."""
    differences: list[str] = []
    launches = samples_read = 0
    cases = {a.case.hash: (a.case, p.protocol) for p in run.plans for a in p.arms}
    for launch in run.launches:
        if launch.purpose is not Purpose.TIMED or launch.status is not LaunchStatus.OK:
            continue
        launches += 1
        case, protocol = cases[launch.case]
        try:
            samples = [load_samples(folder, launch.launch, r) for r in launch.ranks]
        except RecordError as error:
            differences.append(str(error))
            continue
        samples_read += len(samples)
        expected = run.described[launch.case].expected
        assert expected is not None
        cut = protocol.cut
        again: dict[str, Json] = {
            "wrong": derive.wrong(case, expected, launch.ranks, samples, cut),
            "steps": derive.steps(samples, cut),
            "consumed": derive.consumed(samples, cut),
            "growth": derive.growth(samples, cut),
            "losses": derive.losses(samples),
        }
        for name, value in again.items():
            if not same(to_doc(value), to_doc(getattr(launch, name))):
                differences.append(
                    f"{launch.launch}: {name} is {getattr(launch, name)}, samples say {value}"
                )
        for rank, own in zip(launch.ranks, samples, strict=True):
            if not same(derive.window_s(own, cut), rank.window_s):
                differences.append(f"{launch.launch}: window of rank {rank.rank} differs")
    again_verdicts = verdict.verdicts(run)
    if len(again_verdicts) != len(run.verdicts):
        differences.append(
            f"{len(run.verdicts)} verdicts recorded, {len(again_verdicts)} recomputed"
        )
    for old, new in zip(run.verdicts, again_verdicts, strict=False):
        if not same(to_doc(old), to_doc(new)):
            differences.append(
                f"{old.case} {old.contrast}: recorded {old.status} {old.value},"
                f" recomputed {new.status} {new.value}"
            )
    return Verification(
        num_launches=launches,
        num_samples=samples_read,
        num_verdicts=len(again_verdicts),
        differences=tuple(differences),
    )


def same(a: Json, b: Json) -> bool:
    """Equal, floats within TOLERANCE."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12) or (
            math.isnan(a) and math.isnan(b)
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
