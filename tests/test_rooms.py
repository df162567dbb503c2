"""Folders are layers: imports point down, only training imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
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
]
#: Rooms side by side: neither imports the other.
APART = [{"launch", "analysis"}, {"training", "measure"}]
MODULES = sorted(HARNESS.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(HARNESS)))
def test_imports_point_down_and_only_training_imports_torch(path: Path) -> None:
    room = path.relative_to(HARNESS).parts[0].removesuffix(".py")
    below = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ROOMS
    for name in imports(path):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if top == "harness" and room in ROOMS:
            assert other in below and {room, other} not in APART, f"{path} imports {name}"
            assert other != "training" or room == "training", f"{path} imports {name}: nobody may"
        assert top != "torch" or room == "training", f"{path} imports torch"
        if room == "training" and other == "launch":
            assert rest.startswith("launch.wire."), (
                f"{path} imports {name}: of launch only the wire"
            )


def test_every_room_has_its_place() -> None:
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
def test_torch_is_not_imported_to_list_collect_verify_or_report(code: str) -> None:
    check = "\nimport sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code + check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
