"""Losses of the reference: what every timed launch's losses are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.cases import CaseSpec
from harness.cases.site import filled
from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RunRecord
from harness.record.store import Samples, load_samples

#: Launches whose losses are compared; pilots settle how long the reference has to be.
COMPARED = (Purpose.TIMED, Purpose.PROFILE)
#: Steps of a reference whose model is too large for one device: its blocks come in turn.
STREAMED_STEPS = 2
#: Trainings more that a reference has where rounding changes its losses.
REPLICATES = 3
#: So many times farther than any replicate so far: a single loss, and the root mean square of the
#: losses of a block of steps. Correct launches stay below 0.27 and 0.67 of the limit
#: (``benchmarks/experiments/honest.py``). In 16 bits the smallest training defect is at 1.2 times
#: the limit (``tests/contract/test_cheats.py``).
SINGLE = 10.0
COURSE = 4.0
#: How a launch is called wrong whose losses are not the reference's.
ASTRAY = "loss: step"
#: Steps of such a block.
BLOCK = 8
#: Relative differences that are never held against a launch: sums of fp32 in another order; and
#: those that always are.
LEAST_LIMIT = 2e-5
MOST_LIMIT = 2e-2


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Mean loss of each step, and how far a launch may be off, relatively (0: to the bit).

    ``replicates`` are losses of the same training with other roundings (replicates, steps): they
    say what rounding explains. None in older records, where the model is too large, and where no
    launch was further off than sums in another order explain. ``provisional``: they can still be
    trained, so a launch is only let through if it is within the least limit.
    """

    losses: np.ndarray
    limit: float
    replicates: np.ndarray | None = None
    provisional: bool = False

    def limits(self, steps: int) -> np.ndarray:
        """The limit of each step: rounding grows as training goes on, to 2 % at most.

        Without replicates as measured with 3 and 4 ranks: 1e-7 up to step 32, 7e-5 at step 60,
        3e-4 at step 120.
        """
        if self.provisional:
            return np.full(steps, LEAST_LIMIT)
        if self.limit and self.replicates is not None:
            widest = np.maximum.accumulate(np.abs(self._spread(steps)).max(0))
            return np.asarray(np.clip(SINGLE * widest, LEAST_LIMIT, MOST_LIMIT))
        grown = self.limit * 2.0 ** (np.maximum(0, np.arange(steps) - 32) / 8)
        return np.asarray(np.minimum(grown, max(self.limit, MOST_LIMIT)))

    def block_limits(self, steps: int) -> np.ndarray:
        """The limit of the root mean square of each whole block of steps; infinite without
        replicates.
        """
        blocks = steps // BLOCK
        if not self.limit or self.replicates is None or not blocks:
            return np.full(blocks, np.inf)
        widest = np.maximum.accumulate(block_rms(self._spread(steps)).max(0))
        return np.asarray(np.clip(COURSE * widest, LEAST_LIMIT, MOST_LIMIT))

    def _spread(self, steps: int) -> np.ndarray:
        """Relative differences of the replicates (replicates, steps)."""
        assert self.replicates is not None
        return relative(self.replicates[:, :steps], self.losses[:steps])


def relative(losses: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How far losses are off, relatively."""
    return np.asarray((losses - wanted) / np.maximum(np.abs(wanted), 1e-12))


def block_rms(differences: np.ndarray) -> np.ndarray:
    """The root mean square of each whole block of steps, along the last axis."""
    blocks = differences.shape[-1] // BLOCK
    whole = differences[..., : blocks * BLOCK].reshape(*differences.shape[:-1], blocks, BLOCK)
    return np.asarray(np.sqrt((whole**2).mean(-1)))


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
    """The losses that a case must have; None where there is nothing to compare with."""
    launch = launch_of(launches, described, case)
    wanted = described[case].reference
    if launch is None or wanted is None or launch.status is not LaunchStatus.OK:
        return None
    samples = [load_samples(folder, launch.launch, rank) for rank in launch.ranks]
    replicates = [sample.replicates for sample in samples if sample.replicates is not None]
    return LossCurve(
        losses=mean_losses(samples),
        limit=wanted.limit,
        replicates=np.mean(replicates, axis=0) if replicates else None,
    )


class Curves:
    """The curves of a whole record, each read once."""

    def __init__(self, run: RunRecord, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._read: dict[tuple[str, float], LossCurve | None] = {}

    def of(self, case: str) -> LossCurve | None:
        """The losses that a case must have; cases that train alike share them."""
        wanted = self._run.described[case].reference
        if wanted is None:
            return None
        key = (wanted.key, wanted.limit)
        if key not in self._read:
            self._read[key] = curve(self._folder, self._run.references, self._run.described, case)
        return self._read[key]


def mean_losses(samples: Sequence[Samples]) -> np.ndarray:
    """The loss of each step: the mean over the ranks that computed one, NaN where none did."""
    by_rank = np.stack([sample.loss for sample in samples])
    known = ~np.isnan(by_rank)
    total = np.where(known, by_rank, 0.0).sum(0)
    count = known.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def astray(samples: Sequence[Samples], curve: LossCurve) -> str:
    """From which step on the losses are not the reference's; empty if they are."""
    losses = mean_losses(samples)
    steps = min(len(losses), len(curve.losses))
    wanted = curve.losses[:steps]
    off = relative(losses[:steps], wanted)
    limits = curve.limits(steps)
    wrong = np.flatnonzero(~(np.abs(off) <= limits))
    if not len(wrong):
        return _off_course(off, curve)
    step = int(wrong[0])
    far = float(np.nanmax(np.abs(off)))
    return (
        f"{ASTRAY} {step} gives {losses[step]:.7g}, the reference {wanted[step]:.7g}"
        f" ({len(wrong)} of {steps} steps differ, by up to {far:.1e}; limit {limits[step]:.2g})"
    )


def _off_course(off: np.ndarray, curve: LossCurve) -> str:
    """The first block of steps whose losses are off by more than rounding explains."""
    seen = block_rms(off)
    limits = curve.block_limits(len(off))
    wrong = np.flatnonzero(~(seen <= limits))
    if not len(wrong):
        return ""
    block = int(wrong[0])
    first = block * BLOCK
    return (
        f"{ASTRAY}s {first} to {first + BLOCK - 1} are off the reference by {seen[block]:.1e},"
        f" trainings that round otherwise by {limits[block] / COURSE:.1e} at most"
        f" ({len(wrong)} of {len(seen)} blocks of {BLOCK} steps; limit {limits[block]:.2g})"
    )


def world(case: CaseSpec, described: Described, streamed: bool) -> CaseSpec:
    """The world of a case's reference: one rank for each shard, or for all in turn."""
    assert described.reference is not None
    shards = 1 if streamed else described.reference.shards
    if shards == case.world_size:
        return case
    nodes = filled(case.nodes, shards)
    return replace(case, world_size=shards, nodes=nodes, mesh="", stragglers="")
