"""Define the folder in which a script runs, and the folders to which it may write.

A launch works in a copy of the script's folder, so it does not find files of other launches. With
``--clean`` it works in the folder itself, and the paths that it writes are removed before each
launch. Each launch has a separate folder for temporary files. All other files are read-only
(``host/sandbox.py``). If the kernel does not allow that, ``startup/write_guard.py`` still stops
Python code that would write to them, and it names the path in any case.
"""

import getpass
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.base.errors import LaunchError
from harness.host import copies, doctor, leftovers, sandbox
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.training.script.startup.write_guard import WRITABLE, caches


def of(spec: LaunchSpec, node: int) -> Path:
    """Return the folder in which the ranks of a node run."""
    task = spec.task
    if isinstance(task, Script) and task.clean:
        return Path(task.folder)
    place = task.place if isinstance(task, Break) else spec.out
    return Path(place) / f"work{node}"


def on_path(paths: Iterable[str], home: Path, folder: Path) -> list[str]:
    """Return the module search path with the user's copied folders replaced by their copies.

    With ``PYTHONPATH=.``, for example, modules are then imported from the copy, and nothing is
    written next to the user's sources.
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

    Its path is short, because the path of a socket in it may have at most 107 characters.
    """
    digest = hashlib.sha256(str(out).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"scaleproof-{leftovers.HOST}{digest}-{node}"


def temporaries(out: Path) -> list[Path]:
    """Return the folders for temporary files of a launch that exist on this machine."""
    return [*temporary(out, 0).parent.glob(temporary(out, 0).name.removesuffix("0") + "*")]


def variables(spec: LaunchSpec, node: int) -> Mapping[str, str]:
    """Return the environment variables that name the temporary folder and the writable folders.

    The cache of TorchInductor keeps its default location, so that launches share compiled code.
    """
    task = spec.task
    assert isinstance(task, Break | Script)
    of_launch = temporary(Path(spec.out), node)
    folder = of(spec, node)
    cleaned = task.clean if isinstance(task, Script) else ()
    places = [folder / path for path in cleaned] or [folder]
    allowed = [Path(task.folder) / path for path in task.writes]
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{of_launch.parent}/torchinductor_{user}")
    return {
        "TMPDIR": str(of_launch),
        "TORCHINDUCTOR_CACHE_DIR": compiled,
        WRITABLE: os.pathsep.join(map(str, (*places, *allowed, spec.out, of_launch))),
    }


def protect(spec: LaunchSpec, node: int) -> None:
    """Make all files read-only for this process, except in the folders of the launch.

    This process must have one thread only. Only a user's script is confined.
    """
    task = spec.task
    if not isinstance(task, Break | Script):
        return
    home = Path(task.folder)
    of_launch = [Path(spec.out), temporary(Path(spec.out), node)]
    if isinstance(task, Break):
        of_launch.append(Path(task.place))
    if isinstance(task, Script) and task.clean:
        of_launch.append(home)
    compiled = Path(variables(spec, node)["TORCHINDUCTOR_CACHE_DIR"])
    for folder in (*of_launch, compiled):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_foreign(temporary(Path(spec.out), node))
    leftovers.hold(temporary(Path(spec.out), node))
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        _refuse_foreign(compiled)
    allowed = [home / path for path in task.writes]
    existing = [folder for folder in (*caches(), *allowed) if folder.exists()]
    sandbox.enter([*of_launch, compiled, *existing], [home / path for path in task.data])


def _refuse_foreign(folder: Path) -> None:
    """Raise LaunchError if a folder is a link or belongs to another user.

    Names below ``/tmp`` can be foreseen, and every user may create them first.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise LaunchError(
            "this folder is a link or belongs to another user",
            where=str(folder),
            expected="a folder of your own for temporary files",
            fix="export TMPDIR=$(mktemp -d)",
        )


def prepare(spec: LaunchSpec, node: int) -> None:
    """Create or clean the folders of a launch, once on every node."""
    task = spec.task
    folder = of(spec, node)
    assert isinstance(task, Break | Script)
    if isinstance(task, Script) and task.clean:
        doctor.remove_paths(folder, task.clean)
    # A resumed training works in the same folder, which has the interrupted training's checkpoints.
    elif not (isinstance(task, Break) and folder.is_dir()):
        copies.copy(Path(task.folder), folder, folder.parent, task.data)
