"""How a run is made, as its options ask for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from harness.launch import cluster
from harness.launch.engine import Where
from harness.spec import Device
from harness.spec.catalogue import Entry


def end_on_sigterm() -> None:
    """Let SIGTERM end a run as Ctrl-C does: cleanly, with what was measured kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made: never identity, all recorded.

    ``nodes`` are the ranks that each node can take; ``cluster`` is the file that the engine's
    settings come from. ``budget_s`` is what the whole run may take; without it every plan gets its
    first blocks, and what is then undecided gets more while the run is younger than
    ``more_until_s``.
    """

    results: Path
    engine: str = "local"
    nodes: tuple[int, ...] = (1,)
    device: Device = Device.CPU
    cluster: Path | None = None
    budget_s: float | None = None
    more_until_s: float = 330.0
    strict: bool = False
    timeline: bool = True
    fabric: bool = True
    tune_loop_thread: bool = True
    argv: tuple[str, ...] = ()

    def where(self, run: str, engines: Mapping[str, Entry]) -> Where:
        """Where the ranks of a run are started; scripts and logs lie beside the runs."""
        return Where(
            nodes=self.nodes,
            device=self.device,
            folder=self.results / "engine" / run,
            settings=cluster.settings(self.cluster, self.engine, engines),
        )

    @property
    def texts(self) -> dict[str, str]:
        """As they stand in the record."""
        return {
            name: " ".join(value) if name == "argv" else str(value)
            for name, value in vars(self).items()
            if name != "results"
        }
