"""Compare every timed launch's losses with those of a reference training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.cases import CaseSpec
from harness.cases.site import filled
from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RunRecord
from harness.record.store import Samples, load_samples

#: Purposes of launches whose losses are compared. Pilots are not compared, because the length of
#: the reference training is only known after them.
COMPARED = (Purpose.TIMED, Purpose.PROFILE)
#: Number of steps of a reference training if its model is too large for one device. The blocks of
#: such a model are loaded in turn.
STREAMED_STEPS = 2
#: Number of replicates: trainings that repeat a reference with different rounding.
REPLICATES = 3
#: Limits of the relative difference from the reference: ``SINGLE`` for the loss of a step,
#: ``COURSE`` for the root mean square over a block of steps. Both are multiples of the largest
#: difference of any replicate so far. Correct launches stay below 0.27 and 0.67 of these limits
#: (``benchmarks/experiments/honest.py``). In 16 bits, the smallest training defect reaches 1.2
#: times the limit (``tests/contract/test_cheats.py``).
SINGLE = 10.0
COURSE = 4.0
#: Beginning of the message on a launch whose losses differ from the reference's.
ASTRAY = "loss: step"
#: Number of steps in a block.
BLOCK = 8
#: Relative differences below ``LEAST_LIMIT`` are always accepted, because fp32 sums in a different
#: order cause them. Differences above ``MOST_LIMIT`` are never accepted.
LEAST_LIMIT = 2e-5
MOST_LIMIT = 2e-2


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The losses of a reference training, and how far the losses of a launch may differ from them.

    ``losses`` are the mean losses of the steps. ``limit`` is the allowed relative difference of a
    launch (0: its losses must be bitwise equal). ``replicates`` are losses of the same training
    with different rounding, of shape (replicates, steps). They show which differences rounding
    explains. ``replicates`` is None in older records, or if the model is too large, or if the
    order of sums explains all differences of the launches. ``provisional`` says that replicates can
    still be trained, so a launch is accepted only within ``LEAST_LIMIT``.
    """

    losses: np.ndarray
    limit: float
    replicates: np.ndarray | None = None
    provisional: bool = False

    def limits(self, steps: int) -> np.ndarray:
        """Return the limit of each step's relative difference.

        Limits grow with the steps, because rounding differences grow during training; they are at
        most 2 %. Without replicates, the limits grow as measured with 3 and 4 ranks, where the
        differences were 1e-7 up to step 32, 7e-5 at step 60 and 3e-4 at step 120.
        """
        if self.provisional:
            return np.full(steps, LEAST_LIMIT)
        if self.limit and self.replicates is not None:
            widest = np.maximum.accumulate(np.abs(self._spread(steps)).max(0))
            return np.asarray(np.clip(SINGLE * widest, LEAST_LIMIT, MOST_LIMIT))
        grown = self.limit * 2.0 ** (np.maximum(0, np.arange(steps) - 32) / 8)
        return np.asarray(np.minimum(grown, max(self.limit, MOST_LIMIT)))

    def block_limits(self, steps: int) -> np.ndarray:
        """Return the limit of the root mean square of each whole block of steps.

        Without replicates it is infinite.
        """
        blocks = steps // BLOCK
        if not self.limit or self.replicates is None or not blocks:
            return np.full(blocks, np.inf)
        widest = np.maximum.accumulate(block_rms(self._spread(steps)).max(0))
        return np.asarray(np.clip(COURSE * widest, LEAST_LIMIT, MOST_LIMIT))

    def _spread(self, steps: int) -> np.ndarray:
        """Return the relative differences of the replicates' losses from the reference's losses.

        The result has the shape (replicates, steps).
        """
        assert self.replicates is not None
        return relative(self.replicates[:, :steps], self.losses[:steps])


def relative(losses: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the relative differences of ``losses`` from ``wanted``."""
    return np.asarray((losses - wanted) / np.maximum(np.abs(wanted), 1e-12))


def block_rms(differences: np.ndarray) -> np.ndarray:
    """Return the root mean square of each whole block of steps, along the last axis."""
    blocks = differences.shape[-1] // BLOCK
    whole = differences[..., : blocks * BLOCK].reshape(*differences.shape[:-1], blocks, BLOCK)
    return np.asarray(np.sqrt((whole**2).mean(-1)))


def launch_of(
    launches: Sequence[LaunchRecord], described: Mapping[str, Described], case: str
) -> LaunchRecord | None:
    """Return the reference launch for the case with this hash, or None.

    It is the last reference launch of any case with the same reference key.
    """
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
    """Return the expected losses of a case; None if there is no reference."""
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
    """The loss curves of a whole record, each read once."""

    def __init__(self, run: RunRecord, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._read: dict[tuple[str, float], LossCurve | None] = {}

    def of(self, case: str) -> LossCurve | None:
        """Return the expected losses of a case, or None if it has no reference.

        Cases with the same reference have the same curve.
        """
        wanted = self._run.described[case].reference
        if wanted is None:
            return None
        key = (wanted.key, wanted.limit)
        if key not in self._read:
            self._read[key] = curve(self._folder, self._run.references, self._run.described, case)
        return self._read[key]


def mean_losses(samples: Sequence[Samples]) -> np.ndarray:
    """Return the loss of each step: the mean over the ranks that computed one, NaN if none did."""
    by_rank = np.stack([sample.loss for sample in samples])
    known = ~np.isnan(by_rank)
    total = np.where(known, by_rank, 0.0).sum(0)
    count = known.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def astray(samples: Sequence[Samples], curve: LossCurve) -> str:
    """Return a message on the first step whose loss differs from the reference's.

    Return an empty string if the losses agree.
    """
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
    """Return a message on the first block of steps whose losses differ more than rounding explains.

    Return an empty string if there is none.
    """
    seen = block_rms(off)
    limits = curve.block_limits(len(off))
    wrong = np.flatnonzero(~(seen <= limits))
    if not len(wrong):
        return ""
    block = int(wrong[0])
    first = block * BLOCK
    return (
        f"{ASTRAY}s {first} to {first + BLOCK - 1} differ from the reference by {seen[block]:.1e},"
        f" trainings with different rounding by at most {limits[block] / COURSE:.1e}"
        f" ({len(wrong)} of {len(seen)} blocks of {BLOCK} steps; limit {limits[block]:.2g})"
    )


def world(case: CaseSpec, described: Described, streamed: bool) -> CaseSpec:
    """Return the world in which the reference of a case is trained.

    It has one rank for each shard. If the reference is ``streamed``, a single rank loads the blocks
    of the model in turn.
    """
    assert described.reference is not None
    shards = 1 if streamed else described.reference.shards
    if shards == case.world_size:
        return case
    nodes = filled(case.nodes, shards)
    return replace(case, world_size=shards, nodes=nodes, mesh="", stragglers="")
