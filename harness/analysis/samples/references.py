"""Losses of the reference: what every timed launch's losses are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RunRecord
from harness.record.store import Samples, load_samples

#: Launches whose losses are compared; pilots settle how long the reference has to be.
COMPARED = (Purpose.TIMED, Purpose.STALLED, Purpose.FLAKED, Purpose.PROFILE)
#: Steps of a reference whose model is too large for one device: its blocks come in turn.
STREAMED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Mean loss of each step, and how far a launch may be off, relatively (0: to the bit)."""

    losses: np.ndarray
    limit: float

    def limits(self, steps: int) -> np.ndarray:
        """The limit of each step: rounding grows as training goes on, to 2 % at most.

        Measured with 3 and 4 ranks: 1e-7 up to step 32, 7e-5 at step 60, 3e-4 at step 120.
        """
        grown = self.limit * 2.0 ** (np.maximum(0, np.arange(steps) - 32) / 8)
        return np.asarray(np.minimum(grown, max(self.limit, 2e-2)))


def launch_of(
    launches: Sequence[LaunchRecord], described: Mapping[str, Described], case: str
) -> LaunchRecord | None:
    """The reference's launch for a case (its hash): the last one of any case with the same key."""
    wanted = described[case].reference
    if wanted is None:
        return None
    for launch in reversed(launches):
        its = described[launch.case].reference if launch.purpose is Purpose.REFERENCE else None
        if its is not None and its.key == wanted.key:
            return launch
    return None


def curve(
    folder: Path,
    launches: Sequence[LaunchRecord],
    described: Mapping[str, Described],
    case: str,
) -> LossCurve | None:
    """What a case's losses have to be; None where there is nothing to compare with."""
    launch = launch_of(launches, described, case)
    wanted = described[case].reference
    if launch is None or wanted is None or launch.status is not LaunchStatus.OK:
        return None
    samples = [load_samples(folder, launch.launch, r) for r in launch.ranks]
    return LossCurve(losses=mean_losses(samples), limit=wanted.limit)


class Curves:
    """The curves of a whole record, each read once."""

    def __init__(self, run: RunRecord, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._read: dict[tuple[str, float], LossCurve | None] = {}

    def of(self, case: str) -> LossCurve | None:
        """What a case's losses have to be; cases that train alike share it."""
        wanted = self._run.described[case].reference
        if wanted is None:
            return None
        key = (wanted.key, wanted.limit)
        if key not in self._read:
            self._read[key] = curve(self._folder, self._run.references, self._run.described, case)
        return self._read[key]


def mean_losses(samples: Sequence[Samples]) -> np.ndarray:
    """The loss of each step: the mean over the ranks that computed one, NaN where none did."""
    every = np.stack([s.loss for s in samples])
    known = ~np.isnan(every)
    total = np.where(known, every, 0.0).sum(0)
    count = known.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def astray(samples: Sequence[Samples], curve: LossCurve) -> str:
    """From which step on the losses are not the reference's; empty if they are."""
    mine = mean_losses(samples)
    steps = min(len(mine), len(curve.losses))
    wanted = curve.losses[:steps]
    off = np.abs(mine[:steps] - wanted) / np.maximum(np.abs(wanted), 1e-12)
    limits = curve.limits(steps)
    wrong = np.flatnonzero(~(off <= limits))
    if not len(wrong):
        return ""
    step = int(wrong[0])
    far = float(np.nanmax(off))
    return (
        f"loss: step {step} gives {mine[step]:.7g}, the reference {wanted[step]:.7g}"
        f" ({len(wrong)} of {steps} steps differ, by up to {far:.1e}; limit {limits[step]:.2g})"
    )
