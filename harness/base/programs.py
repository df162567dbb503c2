"""Programs: those of this package that others start, by their names in command lines, and others.

Nothing imports them from here: they are the other side of a border. Leftovers of earlier runs are
found by ``TRAINING``, which every agent and rank has in its command line.
"""

import os
import shutil
import sys
from pathlib import Path

TRAINING = "harness.training"
AGENT = f"{TRAINING}.agent.agent"
TORCHRUN_RANK = f"{TRAINING}.rank.under_torchrun"
SWITCH = "harness.launch.emulation.switch"
RECORDER = "harness.measure.recorder"

#: How Python runs a module of this package: a user's ``secrets.py`` in the working folder must not
#: be taken for the standard library's. What is no script's finds that folder last (``own_folder``).
MODULE = ("-P", "-m")

#: The folder of this package, and the one that a program needs on its path to import it.
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent


def own_folder() -> None:
    """Let this program find what lies in its working folder, after everything else."""
    sys.path.append(str(Path.cwd()))


def without_own_folder() -> None:
    """Let it find there no more than any interpreter would: before the folder is changed."""
    if sys.path[-1:] == [str(Path.cwd())]:
        sys.path.pop()


def path() -> str:
    """Where programs are looked for: beside this interpreter, then on the PATH.

    An environment's Python is often started by its full path, with nothing activated.
    """
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def which(name: str) -> str | None:
    """A program's path, or None where there is none of this name."""
    return shutil.which(name, path=path())
