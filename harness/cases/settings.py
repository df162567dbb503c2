"""How a run is made, as its options ask for."""

from dataclasses import dataclass
from pathlib import Path

from harness.cases.case import Device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made: never identity, all recorded.

    ``nodes`` are the ranks that each node can take; ``cluster`` is the file that the engine's
    settings come from. ``budget_s`` is what the whole run may take; without it every plan gets its
    first blocks, and what is then undecided gets more, while that promises a decision and the run
    is younger than ``more_until_s``. ``packed``: small worlds run side by side where they have
    nodes or devices of their own. ``nonce`` is a text of whoever asked for the run: it was made
    after that.
    ``shared_gpu``: ranks may have to share a device. ``outline``: profiles leave operators out.
    ``paths`` are the folders of a user's own files. ``lenient``: INCONCLUSIVE fails nothing.
    ``fresh``: every rank of a script is started as an interpreter of its own; ``folder`` is where
    the script was run. With ``clean`` it runs there itself, not in copies: these paths are removed
    before every launch. Copies share the paths of ``data``, which a script only reads. ``setups``
    are other environments: names and interpreters. ``checkouts`` are versions of the project
    (``project`` is its folder): a setup that has one trains with its files.
    """

    engine: str = "local"
    nodes: tuple[int, ...] = (1,)
    device: Device = Device.CPU
    cluster: str | None = None
    budget_s: float | None = None
    more_until_s: float = 480.0
    strict: bool = False
    timeline: bool = True
    fabric: bool = True
    argv: tuple[str, ...] = ()
    nonce: str = ""
    packed: bool = True
    shared_gpu: bool = False
    outline: bool = False
    paths: tuple[str, ...] = ()
    lenient: bool = False
    fresh: bool = False
    folder: str = ""
    clean: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    setups: tuple[tuple[str, str], ...] = ()
    project: str = ""
    checkouts: tuple[tuple[str, str], ...] = ()

    def placed(self, path: str, setup: str) -> str:
        """Where a setup has this file or folder: in its own version of the project, if it has one
        and the path is in the project.
        """
        checkout = dict(self.checkouts).get(setup)
        if checkout is None or not Path(path).is_relative_to(self.project):
            return path
        return str(Path(checkout) / Path(path).relative_to(self.project))
