"""Folders are layers: imports point down, only training imports torch; features are independent."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"

ROOMS = [
    "base",
    "host",
    "cases",
    "record",
    "launch",
    "analysis",
    "training",
    "measure",
    "interface",
    "features",
]
#: Pairs of folders on one level: neither imports the other.
APART = [{"launch", "analysis"}, {"training", "measure"}]
MODULES = sorted(HARNESS.rglob("*.py"))


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{a.name}" for a in node.names}
    return names


def broken(path: Path) -> Iterator[str]:
    """Yield every import of a module that points up, or to torch from outside of training."""
    room = path.relative_to(HARNESS).parts[0].removesuffix(".py")
    below = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ROOMS
    for name in imports(path):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if top == "torch" and room != "training":
            yield f"{path} imports torch"
        if top != "harness" or room not in ROOMS:
            continue
        if other not in below or {room, other} in APART:
            yield f"{path} imports {name}"
        if room == other == "features" and rest.split(".")[1] != path.relative_to(HARNESS).parts[1]:
            yield f"{path} imports {name}: features import the core alone"
        if other == "training" and room != "training":
            yield f"{path} imports {name}: nobody may"
        if room == "training" and other == "launch" and not rest.startswith("launch.wire."):
            yield f"{path} imports {name}: of launch only the wire"


def test_imports_point_down_and_only_training_imports_torch() -> None:
    assert [why for path in MODULES for why in broken(path)] == []


def test_every_folder_has_a_layer() -> None:
    assert {p.name for p in HARNESS.iterdir() if p.is_dir() and p.name[0] != "_"} == set(ROOMS)


@pytest.mark.parametrize(
    "code",
    [
        "import harness",
        "from harness.interface.cli.main import main; assert main(['list']) == 0",
        "from harness.interface.cli.main import main; assert main(['verify', 'results/samples/ddp-nano']) == 0",
        "from harness.interface.cli.main import main; assert main(['report', 'results/samples/ddp-nano', '--json']) == 0",
        "import pytest; assert not pytest.main(['--collect-only', '-q', 'suites/', '--cpus', '2'])",
    ],
)
def test_list_collect_verify_and_report_do_not_import_torch(code: str) -> None:
    check = "\nimport sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code + check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
