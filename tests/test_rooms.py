"""Modules import only from lower layers; only layer 2 imports torch; files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HARNESS = ROOT / "harness"

LAYERS: dict[str, int] = {
    **dict.fromkeys(["outcome", "errors", "codec", "spec", "units", "stats", "sequential", "steadiness", "budget", "ranges", "fabric"], 0),
    **dict.fromkeys(
        ["discover", "config", "thresholds", "nvml", "machine", "record", "protocol", "beat",
         "site", "recipes", "suite", "doctor", "admission", "channel", "cluster", "disk", "evidence", "orphans", "recovery", "store", "upgrade", "__init__"], 1),
    **dict.fromkeys(["models", "strategies", "compressors", "capture", "worker"], 2),
    "launch": 3,
    **dict.fromkeys(["derive", "contrasts", "judge", "fingerprint", "references", "pilots", "findings", "verdict", "obstacles", "verify", "resume",
         "compare", "history", "timeline", "profiles", "sweeps", "pairing", "apart", "judgement"], 4),
    **dict.fromkeys(["measure", "run", "launcher", "settings", "sweeper", "recoverer", "progress", "report", "frames"], 5),
    **dict.fromkeys(["options", "planning", "arguments", "cli", "baseline", "timelines", "network", "nodes", "detached", "nsys", "session", "pytest_plugin", "benchmark_bridge", "__main__", "schema"], 6),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(p for p in HARNESS.rglob("*.py"))


def layer(path: Path) -> int:
    first = path.relative_to(HARNESS).parts[0].removesuffix(".py")
    assert first in LAYERS, f"{path} belongs to no layer: add it to LAYERS and docs/design.md"
    return LAYERS[first]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "harness":
                found |= {f"harness.{a.name}" for a in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(HARNESS)))
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "harness" and len(parts) > 1 and parts[1] in LAYERS:
            other = LAYERS[parts[1]]
            assert other <= own, f"{path.name} (layer {own}) imports {name} (layer {other})"
            if own > 2:
                assert other != 2, f"{path.name} imports layer 2, which imports torch"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(HARNESS)))
def test_only_layer_2_imports_torch(path: Path) -> None:
    if layer(path) != 2:
        assert not any(n.split(".")[0] == "torch" for n in imports(path))


def test_no_module_outgrows_its_noun() -> None:
    long = {p.name: n for p in modules() if (n := len(p.read_text().splitlines())) > 450}
    assert not long


@pytest.mark.parametrize(
    "code",
    [
        "import harness",
        "from harness.cli import main; assert main(['list']) == 0",
        "from harness.cli import main; assert main(['verify', 'results/samples/ddp-nano']) == 0",
        "from harness.cli import main; assert main(['report', 'results/samples/ddp-nano', '--json']) == 0",
        "import pytest; assert not pytest.main(['--collect-only', '-q', 'suites/', '--cpus', '2'])",
    ],
)
def test_torch_is_not_imported_to_list_collect_verify_or_report(code: str) -> None:
    check = "\nimport sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code + check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
