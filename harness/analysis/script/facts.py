"""Facts about a user's training: pure functions of the events that a watch recorded on one rank.

    probe (``training/script``) -> events (``Samples``) -> facts -> checks and remarks

The rank computes the facts once for its record, and ``verify`` computes them again from the stored
events. A new fact is therefore known of old runs, too. No function here has a threshold on what is
right: that is what checks and remarks decide.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.record import CollectiveCount
from harness.record.store import Samples

#: The columns of ``Samples.cycles``: values at the start of an update cycle, of which ``steps`` is
#: the number of the set of optimizers that stepped in it, and ``reads`` is NaN after the warm-up.
#: ``reads`` and ``evaluations`` are counts since the start of the training.
CYCLE = ("steps", "backwards", "ahead_s", "evaluations", "reads", "drawn")
#: Largest payload in bytes of a collective that carries a few values, such as a loss.
SMALL = 64
#: A collective with a larger payload in bytes than this carries gradients or parameters.
LARGE = 1024


@dataclass(frozen=True, kw_only=True)
class LoopEvents:
    """The events of one rank's loop, by update cycle.

    ``samples`` are the rank's samples with events. ``cut`` is the number of warm-up steps among
    their steps. ``operations`` are the names of the collectives to which ``issued`` refers.
    """

    samples: Samples
    cut: int
    operations: Sequence[str] = ()

    @cached_property
    def period(self) -> int:
        """The number of update cycles in a step."""
        return (len(self._cycles) - 1) // self.num_steps

    @property
    def num_steps(self) -> int:
        return len(self.samples.step_s)

    @property
    def _cycles(self) -> np.ndarray:
        assert self.samples.cycles is not None
        return self.samples.cycles

    def column(self, name: str) -> np.ndarray:
        """Return a column of the cycles, with one more entry than there are cycles."""
        return self._cycles[:, CYCLE.index(name)]

    def of_steps(self, name: str) -> np.ndarray:
        """Return, for each step of the window, the sum of a column over its update cycles."""
        sums: np.ndarray = self.by_step(self.column(name)[:-1]).sum(axis=1)
        return sums

    def by_step(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the window's cycles, a row for each step: shape (steps, period)."""
        return values[self.cut * self.period :].reshape(-1, self.period)

    @cached_property
    def main(self) -> int | None:
        """The root module that receives most rows, or None if no root was called.

        A model may have been called before it was wrapped, so several roots can be the same model.
        """
        rows = self.samples.rows
        if rows is None or not rows.shape[1]:
            return None
        return int(np.argmax(rows[0].sum(axis=1)))

    def rows(self) -> np.ndarray:
        """Return the number of rows that reached the main root in each step of the window."""
        return self._of_main(0)

    def calls(self) -> np.ndarray:
        """Return the number of calls of the main root in each step of the window."""
        return self._of_main(1)

    def _of_main(self, kind: int) -> np.ndarray:
        if self.main is None or self.samples.rows is None:
            return np.zeros(self.num_steps - self.cut, np.int64)
        sums: np.ndarray = self.by_step(self.samples.rows[kind, self.main]).sum(axis=1)
        return sums

    @cached_property
    def edges_ns(self) -> list[int]:
        """The wall clock times in ns at which the steps of the window begin, and of its end."""
        assert self.samples.edges_ns is not None
        return [int(edge) for edge in self.samples.edges_ns[self.cut :]]

    def issued(self, spans_ns: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
        """Return operation and bytes of the collectives that were issued within the intervals."""
        if self.samples.issued is None:
            return []
        rows = self.samples.issued.tolist()
        return [
            (self.operations[number], size)
            for begin, end in spans_ns
            for number, size, at in rows
            if begin <= at < end
        ]

    def forwards_ns(self) -> list[tuple[int, int]]:
        """Return begin and end of the last forward passes of all roots."""
        passes = self.samples.passes_ns
        return [] if passes is None else [(int(a), int(b)) for _, a, b in passes]


def facts(loop: LoopEvents, *, parallel: bool, sharded: bool) -> dict[str, Any]:
    """Return the fields of ``ScriptObservations`` that follow from the events of the loop.

    ``parallel`` and ``sharded`` are the observations of the same names: whether a wrapper divides
    the data among ranks, and whether parameters are shards.
    """
    return {
        **_sequence(loop),
        **_batches(loop),
        **_exchange(loop, parallel=parallel, sharded=sharded),
    }


def _sequence(loop: LoopEvents) -> dict[str, Any]:
    """Return facts about the order of passes and updates."""
    stepped = loop.by_step(loop.column("steps")[:-1])
    backwards = [int(count) for count in loop.of_steps("backwards")]
    ((_, num_usual),) = Counter(backwards).most_common(1)
    evaluations = loop.column("evaluations")
    counts = loop.column("reads")[:: loop.period][: loop.cut + 1]
    ahead_s = loop.of_steps("ahead_s")
    changed = loop.samples.changed
    return {
        "backwards": backwards[-1],
        "regular": bool((stepped == stepped[0]).all()),
        "unusual": len(backwards) - num_usual,
        "passes": hashlib.sha256(str(backwards).encode()).hexdigest()[:16],
        "evaluations": int(evaluations[-1] - evaluations[loop.cut * loop.period]),
        "acted": int(evaluations[loop.cut * loop.period]),
        "reads": float(np.median(np.diff(counts))) if len(counts) > 1 else 0.0,
        "ahead_s": float(np.median(ahead_s)),
        "bursts_s": max(0.0, float(np.mean(ahead_s) - np.median(ahead_s))),
        "idle": 0.0 if changed is None or not len(changed) else float(np.mean(changed == 0)),
    }


def _batches(loop: LoopEvents) -> dict[str, Any]:
    """Return facts about the samples of steps: how many there are, and which of them recur."""
    rows = loop.rows()
    drawn = loop.of_steps("drawn")
    # A script may skip a batch, so not all steps need as many rows as samples.
    alike = [float(size) for size, count in zip(drawn, rows, strict=True) if size == count > 0]
    as_drawn = alike if len(alike) > len(drawn) / 4 else []
    some = bool(rows.any())
    return {
        "drawn": float(np.median(as_drawn or drawn)),
        "as_drawn": bool(as_drawn),
        "usual": float(np.median(rows) / np.mean(rows)) if some else 1.0,
        "spread": float(np.std(rows) / np.mean(rows)) if some else 0.0,
        "skips": _skips(loop, rows, drawn),
        "distinct": _distinct(loop.samples),
        "again": _again(loop),
    }


def _skips(loop: LoopEvents, rows: np.ndarray, drawn: np.ndarray) -> bool:
    """Return whether some steps of the window have more forward passes than others.

    If loaders hand out batches, only passes with additional batches count, because a model may
    sometimes call a part of itself twice.
    """
    of_sample = {row / size for row, size in zip(rows, drawn, strict=True) if size}
    return len(set(loop.calls().tolist())) > 1 and len(of_sample) <= 1


def _seen(samples: Samples) -> list[np.ndarray]:
    """Return the hashes of the rows of each step. A step that was not examined has none."""
    return [] if samples.seen is None else [step[step != 0] for step in samples.seen]


def _distinct(samples: Samples) -> float:
    """Return the fraction of hashed rows in a step that are distinct, averaged over steps."""
    shares = [len(np.unique(step)) / len(step) for step in _seen(samples) if len(step)]
    return float(np.mean(shares)) if shares else 1.0


def _again(loop: LoopEvents) -> float:
    """Return which fraction of a warm-up step's rows had been in the step before, on average."""
    steps = _seen(loop.samples)[: loop.cut + 1]
    pairs = [pair for pair in itertools.pairwise(steps) if len(pair[0]) and len(pair[1])]
    return float(np.mean([np.isin(b, a).mean() for a, b in pairs])) if pairs else 0.0


def _exchange(loop: LoopEvents, *, parallel: bool, sharded: bool) -> dict[str, Any]:
    """Return facts about the collectives of steps. Broadcasts in passes carry only buffers."""
    if loop.samples.issued is None:
        return {}
    last_ns = (loop.edges_ns[-2], loop.edges_ns[-1])
    forwards_ns = loop.forwards_ns()
    of_step_ns = [span for span in forwards_ns if last_ns[0] <= span[0] < last_ns[1]]
    in_forwards = sum(size for name, size in loop.issued(forwards_ns) if name != "broadcast")
    sent_bytes = _sent(loop)
    cut = in_forwards > LARGE and not parallel and not sharded
    return {
        "collectives": totals(loop.issued([last_ns])),
        "reduced": sum(size for name, size in loop.issued(of_step_ns) if name == "all_reduce"),
        "even": len(set(sent_bytes)) <= 1,
        "silent": sent_bytes.count(0) if any(sent_bytes) else 0,
        "cut": cut,
        "sharded": sharded or cut,
    }


def _sent(loop: LoopEvents) -> list[int]:
    """Return, for each step, the bytes of those collectives that are larger than ``LARGE``.

    The flight recorder keeps only the newest collectives. Steps that began before the oldest of
    them are left out.
    """
    assert loop.samples.issued is not None
    times = loop.samples.issued[:, 2]
    oldest = int(times[0]) if len(times) else 0
    whole = [span for span in itertools.pairwise(loop.edges_ns) if span[0] >= oldest]
    return [sum(size for _, size in loop.issued([span]) if size > LARGE) for span in whole]


def small(loop: LoopEvents) -> int:
    """Return the number of collectives of the last step that carry a loss, a norm or a flag.

    Broadcasts are not counted, because they may carry a small buffer, such as one of batch norm.
    """
    last_ns = (loop.edges_ns[-2], loop.edges_ns[-1])
    return sum(0 < size <= SMALL and name != "broadcast" for name, size in loop.issued([last_ns]))


def totals(collectives: Sequence[tuple[str, int]]) -> Mapping[str, CollectiveCount]:
    """Return the count and the bytes of collectives by operation.

    A receive is not counted, because the sending rank counts the transfer.
    """
    sums: dict[str, tuple[int, int]] = {}
    for name, size in collectives:
        if name != "recv":
            count, seen = sums.get(name, (0, 0))
            sums[name] = (count + 1, seen + size)
    return {
        name: CollectiveCount(count=count, payload_bytes=size)
        for name, (count, size) in sorted(sums.items())
    }


def ready_s(loop: LoopEvents) -> list[float]:
    """Return when each step issued its last large collective, in s of the wall clock, or NaN."""
    if loop.samples.issued is None or loop.samples.edges_ns is None:
        return [math.nan] * loop.num_steps
    large = [at for _, size, at in loop.samples.issued.tolist() if size > LARGE]
    places = np.searchsorted(large, loop.samples.edges_ns).tolist()
    return [
        large[end - 1] / 1e9 if end > begin else math.nan
        for begin, end in itertools.pairwise(places)
    ]
