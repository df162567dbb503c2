"""Where a script runs: a copy of its folder, so that launches do not find what others have left.

Or the folder itself, where what launches write is named and removed.

Small files are copied, large ones are linked: a script writes checkpoints and logs, not its data.
"""

import os
import shutil
from pathlib import Path

from harness.host import leftovers
from harness.launch.wire.messages import Break, LaunchSpec, Script

#: Larger files are linked, in bytes; and what comes after so many copies.
LARGE, MOST = 1 << 20, 5000
#: Folders that a training does not read.
LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def of(spec: LaunchSpec, node: int) -> Path:
    """The folder that the ranks of a node run in."""
    task = spec.task
    if isinstance(task, Script) and task.clean:
        return Path(task.folder)
    place = task.place if isinstance(task, Break) else spec.out
    return Path(place) / f"work{node}"


def prepare(spec: LaunchSpec, node: int) -> None:
    """Make the folder ready for a launch, once on every node."""
    task, folder = spec.task, of(spec, node)
    assert isinstance(task, Break | Script)
    if isinstance(task, Script) and task.clean:
        leftovers.remove(folder, task.clean)
    elif not (isinstance(task, Break) and folder.is_dir()):  # a resumed one finds what was saved
        copy(Path(task.folder), folder, folder.parent)


def copy(folder: Path, into: Path, out: Path) -> None:
    """Make ``into`` look like ``folder``; ``out`` is where runs are written, and left out."""
    copied = 0
    for where, folders, names in os.walk(folder):
        here = Path(where)
        there = into / here.relative_to(folder)
        there.mkdir(parents=True, exist_ok=True)
        for name in tuple(folders):
            inner = here / name
            whole = (inner / "pyvenv.cfg").is_file() or inner.is_symlink()
            if name in LEFT_OUT or out.is_relative_to(inner) or whole:
                folders.remove(name)
            if whole:
                (there / name).symlink_to(inner.resolve())
        for name in names:
            file = here / name
            if copied < MOST and file.is_file() and file.stat().st_size <= LARGE:
                shutil.copy2(file, there / name)
                copied += 1
            else:
                (there / name).symlink_to(file.resolve())
