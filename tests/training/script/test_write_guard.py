"""A guarded process cannot change files outside its folders, however a path is spelled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.training.script.startup import FOLDER

GUARDED = """
import os, pathlib, shutil, sys
work, target = sys.argv[1:]
os.chdir(work)
open("mine.pt", "wb").write(b"new")
sys.path.insert(0, STARTUP)
import write_guard
write_guard.install([work])
{}
"""
#: Torch with a hooked ``save``, which asks the guard first.
TORCH = (
    "import torch; save = torch.save;"
    " torch.save = lambda value, path: (write_guard.refuse(path), save(value, path))"
)
WRITES = {
    "absolute": "open(target, 'w')",
    "home": "open(os.path.expanduser('~/best.pt'), 'w')",
    "parent": "open('../outside/best.pt', 'ab')",
    "link": "os.symlink('../outside', 'link'); open('link/best.pt', 'r+')",
    "environment": "open(os.environ['TARGET'], 'w')",
    "pathlib": "pathlib.Path(target).write_text('x')",
    "numpy": "import numpy as np; np.save(target, np.zeros(3))",
    "memory map": "import numpy as np; np.memmap(target, mode='r+', dtype='u1', shape=(4,))",
    "torch.save": f"{TORCH}; torch.save({{}}, target)",
    "checkpoint": (
        "import torch, torch.distributed.checkpoint as dcp;"
        " dcp.save({'a': torch.zeros(1)}, checkpoint_id=os.path.dirname(target))"
    ),
    "replace": "os.replace('mine.pt', target)",
    "copy": "shutil.copyfile('mine.pt', target)",
    "move away": "os.rename(target, 'theirs.pt')",
    "remove": "os.remove(target)",
    "remove all": "shutil.rmtree(os.path.dirname(target))",
    "truncate": "os.truncate(target, 0)",
    "new": "open(target + '.new', 'w')",
    "folder": "os.makedirs(target + '.d')",
    "no cache": "open(target + '.cached.pt', 'w')",
}
ALLOWED = {
    "inside": f"{TORCH}; open('out.pt', 'w'); torch.save({{}}, 'out2.pt'); os.makedirs('a/b')",
    "read": "open(target).read(); import numpy as np; np.fromfile(target, dtype='u1')",
    "null": "open(os.devnull, 'w').write('x')",
    "existing folder": "os.makedirs(os.path.dirname(target), exist_ok=True)",
    "link removed": "os.symlink(target, 'link'); os.remove('link')",
    "cache": "open(os.path.join(os.environ['XDG_CACHE_HOME'], 'lock'), 'w')",
}


def run(tmp_path: Path, code: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    work = tmp_path / "work"
    outside = tmp_path / "outside"
    home = tmp_path / "home"
    for folder in (work, outside, home, tmp_path / "kept"):
        folder.mkdir()
    target = outside / "best.pt"
    target.write_text("precious")
    (home / "best.pt").write_text("precious")
    variables = {"HOME": home, "TARGET": target, "XDG_CACHE_HOME": tmp_path / "kept"}
    environment = {**os.environ, **{name: str(path) for name, path in variables.items()}}
    done = subprocess.run(
        [sys.executable, "-c", GUARDED.replace("STARTUP", repr(str(FOLDER))).replace("{}\n", code + "\n"), str(work), str(target)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    return done, target


@pytest.mark.parametrize("spelled", WRITES)
def test_a_write_outside_is_stopped_and_names_the_path(tmp_path: Path, spelled: str) -> None:
    done, target = run(tmp_path, WRITES[spelled])
    changed = tmp_path / "home/best.pt" if spelled == "home" else target
    assert "OutsideWriteError" in done.stderr, done.stderr
    assert str(changed.parent) in done.stderr
    assert changed.read_text() == "precious"
    assert [path.name for path in target.parent.iterdir()] == ["best.pt"]


@pytest.mark.parametrize("spelled", ALLOWED)
def test_permitted_operations_are_not_stopped(tmp_path: Path, spelled: str) -> None:
    done, target = run(tmp_path, ALLOWED[spelled])
    assert done.returncode == 0, done.stderr
    assert target.read_text() == "precious"
