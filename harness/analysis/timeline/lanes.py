"""One rank's lanes: what ran, what was communicated, what the host was doing.

A lane is a set of instants; lanes may overlap, the budget decides who takes what.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import intervals
from harness.analysis.timeline.intervals import Intervals
from harness.record.budget import OPERATORS

_P2P = ("send", "recv")
#: The group of a communication that says nothing of other ranks, as our own spans.
ALONE = "alone"
_SETS = ("compute", "move", "data", "launch", "queued")


@dataclass(frozen=True, kw_only=True)
class Op:
    """One communication of one rank; ns on its own clock.

    ``payload`` is its input in elements of ``item_bytes`` each.

    ``size`` is the group's number of ranks, ``seq`` its number within the group, ``peer`` the other
    end of a send or recv. -1 where the trace does not say. ``waited`` is when the rank had nothing
    left to do but to wait for it; before that it cannot have been in anyone's way.
    """

    start: int
    end: int
    kind: str
    group: str
    waited: int = 0
    size: int = -1
    seq: int = -1
    payload: int = -1
    item_bytes: int = -1
    peer: int = -1

    @property
    def p2p(self) -> bool:
        """Whether it has one other end, not a group."""
        return self.kind in _P2P


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """One rank. ``edges`` bound its steps: step k is [edges[k], edges[k + 1]).

    ``queued`` are instants at which the device idles although its next kernel is already queued.
    ``unsure`` says what this trace does not tell, ``capture`` what was looked at.
    """

    rank: int
    world_size: int
    device: str
    edges: NDArray[np.int64]
    compute: Intervals
    move: Intervals
    ops: tuple[Op, ...]
    data: Intervals
    launch: Intervals
    queued: Intervals
    unsure: tuple[str, ...] = ()
    capture: str = OPERATORS

    @property
    def communication(self) -> Intervals:
        """When any communication was under way."""
        return intervals.of((operation.start, operation.end) for operation in self.ops)

    @property
    def awaited(self) -> Intervals:
        """When any communication could keep the rank from going on."""
        return intervals.of(
            (max(operation.start, operation.waited), operation.end) for operation in self.ops
        )

    def shifted(self, offset_ns: int) -> Lanes:
        if not offset_ns:
            return self
        moved = {name: getattr(self, name) + offset_ns for name in ("edges", *_SETS)}
        ops = (
            replace(
                operation,
                start=operation.start + offset_ns,
                end=operation.end + offset_ns,
                waited=operation.waited + offset_ns,
            )
            for operation in self.ops
        )
        return replace(self, ops=tuple(ops), **moved)
