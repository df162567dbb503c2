"""What crosses the border between a launching program and the agent that starts ranks.

JSON lines over a socket pair, one request in flight at a time:

    -> {"describe": [{"case", "files"}]} <- {"described": [Described...]}
    -> {"launch": LaunchSpec}            <- {"ended": {"launch", "ranks", "agent"}}
    -> {"kill": true}                    (the launch in flight ends; "ended" follows)

Ranks leave ``rank<r>.json`` and ``rank<r>.npz`` in the launch's folder; the parent only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.record import Purpose
from harness.spec import CaseSpec


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Longest silence of a rank in each phase, in seconds, before the world is ended."""

    start_s: float = 60.0
    first_step_s: float = 120.0
    step_s: float = 20.0
    collective_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """One world to start. ``files`` maps kind -> path of the strategy, model and compressor file.

    ``twin`` is the case that the correctness gate runs; ``draw`` seeds the launch's own noise
    (paced schedule).
    """

    launch: str
    purpose: Purpose
    case: CaseSpec
    twin: CaseSpec
    steps: int
    cut: int
    out: str
    files: Mapping[str, str]
    draw: int
    profiled: int = 0
    tune_loop_thread: bool = True
    deadlines: Deadlines = Deadlines()


@dataclass(frozen=True, kw_only=True)
class RankError:
    """An exception that a rank wrote down before it ended."""

    type: str
    message: str
    traceback: str
    peer: bool  # it only reports that another rank is gone


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended, with the evidence that tells a culprit from its victims."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    killed: bool  # by the agent, after another rank had ended or a deadline had passed
    finished: bool  # left its result behind
    phase: str
    step: int
    silent_s: float
    order: int  # 0 = first rank seen to end
    error: RankError | None = None
    state: str = ""
    stack: str = ""
