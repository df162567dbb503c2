"""Where a script runs and what it may write to.

A launch works in a copy of the script's folder, so that it does not find what other launches have
left. With ``--clean`` it works in the folder itself, and the paths that it writes are removed.
Temporary files lie in a folder of the launch. ``startup/write_guard.py`` stops every other write.
"""

import getpass
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.host import copies, doctor
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.training.script.startup.write_guard import WRITABLE


def of(spec: LaunchSpec, node: int) -> Path:
    """The folder that the ranks of a node run in."""
    task = spec.task
    if isinstance(task, Script) and task.clean:
        return Path(task.folder)
    place = task.place if isinstance(task, Break) else spec.out
    return Path(place) / f"work{node}"


def on_path(paths: Iterable[str], home: Path, folder: Path) -> list[str]:
    """Folders that modules are looked for in: those of the user's that are copied, in their copy
    (``PYTHONPATH=.``), so that nothing is written beside the user's own.
    """
    return [_in_copy(path, home, folder) for path in paths]


def _in_copy(path: str, home: Path, folder: Path) -> str:
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
    if not path or installed or folder == home or not Path(path).is_relative_to(home):
        return path
    copied = folder / Path(path).relative_to(home)
    return str(copied) if copied.is_dir() else path


def temporary(out: Path, node: int) -> Path:
    """Return the folder for the temporary files of a launch's ranks on a node.

    Its path is short, because a socket's path has at most 107 characters.
    """
    digest = hashlib.sha256(str(out).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"scaleproof-{digest}-{node}"


def temporaries(out: Path) -> list[Path]:
    """Return the folders for temporary files that a launch has left on this machine."""
    return [*temporary(out, 0).parent.glob(temporary(out, 0).name.removesuffix("0") + "*")]


def variables(spec: LaunchSpec, node: int) -> Mapping[str, str]:
    """Return the variables that direct temporary files and say which folders may be written to.

    What TorchInductor has compiled stays where it is without us, so that each launch finds it.
    """
    task = spec.task
    of_launch = temporary(Path(spec.out), node)
    folder = of(spec, node)
    cleaned = task.clean if isinstance(task, Script) else ()
    places = [folder / path for path in cleaned] or [folder]
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{of_launch.parent}/torchinductor_{user}")
    return {
        "TMPDIR": str(of_launch),
        "TORCHINDUCTOR_CACHE_DIR": compiled,
        WRITABLE: os.pathsep.join(map(str, (*places, spec.out, of_launch))),
    }


def prepare(spec: LaunchSpec, node: int) -> None:
    """Make the folders ready for a launch, once on every node."""
    temporary(Path(spec.out), node).mkdir(mode=0o700, exist_ok=True)
    task = spec.task
    folder = of(spec, node)
    assert isinstance(task, Break | Script)
    if isinstance(task, Script) and task.clean:
        doctor.remove_paths(folder, task.clean)
    elif not (isinstance(task, Break) and folder.is_dir()):  # a resumed one finds what was saved
        copies.copy(Path(task.folder), folder, folder.parent, task.data)
