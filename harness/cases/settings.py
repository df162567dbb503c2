"""The settings of a run that its options determine."""

from dataclasses import dataclass
from pathlib import Path

from harness.cases.case import Device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run. They are all recorded, but they do not identify the cases.

    ``nodes`` is the number of ranks that each node can hold. ``cluster`` is the file with the
    engine's settings. ``budget_s`` is the time limit of the whole run in s. Without it every plan
    gets its first blocks. Undecided plans then get more blocks while a decision is likely and the
    run is younger than ``more_until_s``. ``packed``: small worlds run concurrently if they have
    separate nodes or devices. ``nonce`` is a text chosen by the person who asked for the run. It
    proves that the run was made after that.

    ``shared_gpu``: ranks may have to share a device. ``outline``: profiles omit operators.
    ``paths`` are the folders of the user's files. ``lenient``: INCONCLUSIVE does not fail a test.

    ``fresh``: every rank of a script starts in a new interpreter. ``folder`` is the folder in which
    the script was run. With ``clean``, it runs there instead of in copies, and these paths are
    removed before every launch. Copies share the paths in ``data``, which a script only reads.
    ``setups`` are other environments: pairs of a name and an interpreter. ``checkouts`` are
    versions of the project (``project`` is its folder). A setup with a checkout trains with the
    files of that checkout.
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
        """Return the path of a file or folder for a setup.

        The path points into the setup's checkout if there is one and if the path is inside the
        project.
        """
        checkout = dict(self.checkouts).get(setup)
        if checkout is None or not Path(path).is_relative_to(self.project):
            return path
        return str(Path(checkout) / Path(path).relative_to(self.project))
