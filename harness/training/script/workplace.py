"""Where a script runs: a copy of its folder, so that launches do not find what others have left.

Or the folder itself, where what launches write is named and removed.
"""

from collections.abc import Iterable
from pathlib import Path

from harness.host import copies, leftovers
from harness.launch.wire.messages import Break, LaunchSpec, Script


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


def prepare(spec: LaunchSpec, node: int) -> None:
    """Make the folder ready for a launch, once on every node."""
    task = spec.task
    folder = of(spec, node)
    assert isinstance(task, Break | Script)
    if isinstance(task, Script) and task.clean:
        leftovers.remove(folder, task.clean)
    elif not (isinstance(task, Break) and folder.is_dir()):  # a resumed one finds what was saved
        copies.copy(Path(task.folder), folder, folder.parent, task.data)
