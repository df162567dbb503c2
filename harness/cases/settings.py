"""The settings of a run that its options determine."""

from dataclasses import dataclass
from pathlib import Path

from harness.cases.case import Device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run. They are all recorded, but they do not identify the cases.

    ``nodes`` is the number of ranks that each node can hold. ``cluster`` is the file with the
    engine's settings. ``budget_s`` is the time limit of the whole run, in seconds. If it is not
    set, every plan gets its first blocks. Undecided plans then get more blocks, while a decision
    is likely and the run has taken less than ``more_until_s`` seconds. ``packed`` states
    that small worlds run concurrently if they have separate nodes or devices. ``nonce`` is a text
    that the person who asked for the run has chosen. It proves that the run began after this
    choice.

    ``shared_gpu`` states that ranks may share a device. ``outline`` states that profiles omit
    operators. ``paths`` lists the folders of the user's files. ``lenient`` states that INCONCLUSIVE
    does not fail a test. ``require_verdict`` states that thresholds were asked for, so that a run
    in which none judged anything has the exit status NOTHING_JUDGED.

    ``fresh`` states that every rank of a script starts in a new interpreter. ``folder`` is the
    folder in which the script is run. Each launch runs in a copy of it. If ``clean`` lists paths,
    launches run in the folder itself, and these paths are removed before each launch. The copies
    share the paths in ``data``, which the script only reads. The script may change the paths in
    ``writes``, which are outside the copy.

    ``setups`` lists further software environments as pairs of a name and an interpreter.
    ``project`` is the folder of the user's project. ``checkouts`` lists versions of the project as
    pairs of a setup and a folder; the setup trains with the files in this folder.
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
    require_verdict: bool = True
    fresh: bool = False
    folder: str = ""
    clean: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    setups: tuple[tuple[str, str], ...] = ()
    project: str = ""
    checkouts: tuple[tuple[str, str], ...] = ()

    def placed(self, path: str, setup: str) -> str:
        """Return the path of a file or folder for a setup.

        If the setup has a checkout and the path is inside the project, the result is the path in
        the checkout.
        """
        checkout = dict(self.checkouts).get(setup)
        if checkout is None or not Path(path).is_relative_to(self.project):
            return path
        return str(Path(checkout) / Path(path).relative_to(self.project))
