"""Compute the anatomy of the steps of a user's training from the samples of its ranks."""

import itertools
from collections.abc import Sequence

import numpy as np

from harness.record.anatomy import Anatomy, SlowSteps, StepPart
from harness.record.store import Samples

#: A step is slow if it takes more than this many times the median step.
SLOW = 2.0
#: Slow steps lose at least this share of what the slowest one loses. Others may be noise.
MOST = 0.25
#: A part that is inside others explains a slow step if it is at least this share of its additional
#: time.
EXPLAINS = 0.5
#: The parts that do not overlap, and the others.
APART = list(StepPart)[:5]
INSIDE = list(StepPart)[5:]
#: Smallest number of slow steps that are called periodic.
PERIODIC = 3


def anatomy(samples: Sequence[Samples], cut: int) -> Anatomy | None:
    """Return the anatomy of a launch, or None if the parts of its steps were not recorded."""
    if not samples or any(of_rank.parts_s is None for of_rank in samples):
        return None
    parts = np.stack([of_rank.parts_s[cut:] for of_rank in samples if of_rank.parts_s is not None])
    step_s = np.max([np.diff(of_rank.marks_s)[cut:] for of_rank in samples], axis=0)
    first = np.array([of_rank.loss[0] for of_rank in samples])
    return Anatomy(
        median_s=float(np.median(step_s)),
        worst_s=float(step_s.max()),
        parts_s=dict(zip(StepPart, parts.mean(axis=(0, 1)).tolist(), strict=True)),
        slow=_slow(step_s, parts, samples, cut),
        in_turn_s=_in_turn(samples, cut),
        first_loss=float(first.mean()) if np.isfinite(first).all() else None,
        begun=float(np.mean([s.begun[cut:] for s in samples if s.begun is not None])),
    )


def _slow(
    step_s: np.ndarray, parts: np.ndarray, samples: Sequence[Samples], cut: int
) -> SlowSteps | None:
    """Return the slow steps of a window, or None if there are none.

    Args:
        step_s: the time of each step in s, with shape (steps,).
        parts: the parts of the steps in s, with shape (ranks, steps, parts).
        samples: the samples of each rank.
        cut: number of warm-up steps in the samples.
    """
    usual_s = np.median(step_s)
    numbers = np.flatnonzero(step_s > max(SLOW * usual_s, usual_s + MOST * np.ptp(step_s)))
    if not len(numbers):
        return None
    more_s = parts[:, numbers] - np.median(parts, axis=1, keepdims=True)
    part, part_s = _lost_in(more_s)
    begun = np.max([s.begun[cut:] for s in samples if s.begun is not None], axis=0, initial=0)
    gaps = np.diff(numbers)
    periodic = len(numbers) >= PERIODIC and len(set(gaps.tolist())) == 1 and gaps[0] > 1
    return SlowSteps(
        steps=tuple(int(number) + cut for number in numbers),
        share=float(step_s[numbers].sum() / step_s.sum()),
        part=part,
        part_s=part_s,
        begins=int((begun[numbers] > 0).sum()),
        every=int(gaps[0]) if periodic else 0,
    )


def _lost_in(more_s: np.ndarray) -> tuple[StepPart, float]:
    """Return the part in which slow steps lose most time, and the mean time lost there in s.

    Other ranks wait for the slowest rank in their backward passes. The slowest rank of a step is
    therefore the one that spends most additional time outside of the backward pass.

    Args:
        more_s: the additional time of each part in s, with shape (ranks, slow steps, parts).
    """
    apart = more_s[:, :, : len(APART)]
    backward = APART.index(StepPart.BACKWARD)
    outside = np.delete(apart, backward, axis=2).sum(axis=2)
    slowest = outside.argmax(axis=0)
    of_slowest = more_s[slowest, np.arange(more_s.shape[1])].mean(axis=0)
    place = int(of_slowest[: len(APART)].argmax())
    lost_s = float(of_slowest[place])
    inside = of_slowest[len(APART) :]
    if inside.max() >= EXPLAINS * lost_s:
        return INSIDE[int(inside.argmax())], float(inside.max())
    return APART[place], lost_s


def _in_turn(samples: Sequence[Samples], cut: int) -> float | None:
    """Return the mean time in s for which a rank waits in a step for changing ranks, or None.

    A rank waits from the time at which its gradients are complete until those of the last rank are.
    The median lead of each rank is subtracted first, because a rank that is always late, or whose
    clock differs, is no matter of turns.
    """
    ready = [of_rank.ready_s[cut:] for of_rank in samples if of_rank.ready_s is not None]
    if len(ready) < max(2, len(samples)):
        return None
    at_s = np.array(ready)
    known = np.isfinite(at_s).all(axis=0)
    if not known.any():
        return None
    lead_s = at_s[:, known].max(axis=0) - at_s[:, known]
    own_s = lead_s - np.median(lead_s, axis=1, keepdims=True)
    return float((own_s - own_s.min(axis=0)).mean())


def common(windows: Sequence[Sequence[int]]) -> bool:
    """Return whether most of the slow steps are the same in each of several launches."""
    pairs = list(itertools.pairwise(map(set, windows)))
    return bool(pairs) and all(2 * len(a & b) >= max(len(a), len(b)) > 0 for a, b in pairs)
