"""The kinds of injected faults, and the kind of cause that must be reported for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harness.launch.running import LOST_S
from harness.launch.wire.messages import Deadlines

COLLECTIVE_S, TRAINS_S = 3.0, 6.0
DEADLINES = Deadlines(start_s=6, first_step_s=20, step_s=6, collective_s=COLLECTIVE_S)


STRATEGIES = ("ddp", "fsdp", "pipeline")


class On(StrEnum):
    """Where the three ranks run."""

    LOCAL = "local"  # one agent for all
    NODES = "nodes"  # one agent per rank, quick to replace
    EMULATED = "emulated"  # one agent per rank, each in its own network namespace


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``called`` is the kind of cause that must be reported; "" = any that names the rank.

    ``waits_s``: how long the fault shows only as silence; 0 for faults that end a rank at once.
    ``trains_s``: how long ranks continue training before the fault has an effect.
    """

    called: str
    waits_s: float = 0.0
    trains_s: float = 0.0
    on: On = On.LOCAL
    strategies: tuple[str, ...] = STRATEGIES


KINDS: Mapping[str, Kind] = {
    "kill": Kind(called="signal"),
    "raise": Kind(called="exception"),
    "abort": Kind(called=""),  # its signal, or the collective that it did not join
    "exit": Kind(called="exit"),
    "exit3": Kind(called="exit"),
    "oom": Kind(called="memory"),
    "device_oom": Kind(called="memory"),
    "disk": Kind(called="exception", trains_s=TRAINS_S),
    "port": Kind(called="exception"),
    "segfault": Kind(called="signal"),
    "recursion": Kind(called="exception"),
    "quota": Kind(called="exception"),
    "io_error": Kind(called="exception"),
    "files": Kind(called="exception"),
    "long_message": Kind(called="exception"),
    "chatty": Kind(called="exception"),
    "little_memory": Kind(called="memory"),
    "system_exit": Kind(called="exception"),
    "interrupted": Kind(called="exception"),
    "exec": Kind(called="exit"),
    "hang_up": Kind(called=""),  # either its peers or the rank itself notice first
    "agent": Kind(called="node", on=On.NODES),
    "agent_stops": Kind(called="node", waits_s=LOST_S, on=On.EMULATED),
    "agent_at_start": Kind(called="node", on=On.NODES),
    "stop": Kind(called="hang", waits_s=DEADLINES.step_s),
    "hang": Kind(called="hang", waits_s=DEADLINES.step_s),
    "hang_in_collective": Kind(called="collective", waits_s=DEADLINES.step_s),
    "skip": Kind(called="collective", waits_s=DEADLINES.step_s),
    "reorder": Kind(called="collective", waits_s=DEADLINES.step_s),
    "shape": Kind(called="collective", waits_s=DEADLINES.step_s),
    "dtype": Kind(called="collective", waits_s=DEADLINES.step_s),
    "no_data": Kind(called="", waits_s=DEADLINES.step_s),
    "lone_checkpoint": Kind(called="collective", waits_s=DEADLINES.step_s, strategies=("fsdp",)),
    "absent": Kind(called="hang", waits_s=DEADLINES.start_s),
    "absent_node": Kind(called="node", waits_s=LOST_S, on=On.NODES),
    "cut": Kind(called="node", waits_s=DEADLINES.step_s, on=On.EMULATED),
    "slow": Kind(called="slow", waits_s=DEADLINES.step_s, trains_s=TRAINS_S),
}
