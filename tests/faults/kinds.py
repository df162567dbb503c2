"""The kinds of faults that are planted, and how each is called when it is found."""

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
    """What the three ranks run on."""

    LOCAL = "local"  # one agent for all
    NODES = "nodes"  # an agent for each, quick to replace
    EMULATED = "emulated"  # an agent for each, behind a network of its own


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``called`` is the kind of cause that must be found; "" = any that names the rank.

    ``waits_s``: how long nothing but silence tells of it; 0 for what ends a rank at once.
    ``trains_s``: how long ranks train on before it is felt.
    """

    called: str
    waits_s: float = 0.0
    trains_s: float = 0.0
    on: On = On.LOCAL
    strategies: tuple[str, ...] = STRATEGIES


KINDS: Mapping[str, Kind] = {
    "kill": Kind(called="signal"),
    "raise": Kind(called="exception"),
    "abort": Kind(called=""),  # by its signal, or by the collective that it did not come to
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
    "hang_up": Kind(called=""),  # its peers notice first, or it does
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
