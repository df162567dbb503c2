"""What docs/extending.md says is done literally, in a copy of the tree, and it works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SAMPLE = "results/samples/ddp-nano"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with every file that the page says to write into the package."""
    folder = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("harness", "scripts", "docs", "results/samples", "tests/interface/schema"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name, text in re.findall(r"```python\n# (harness/\S+\.py)\n(.*?)```", PAGE, re.S):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text('"""Mine."""\n')
        path.write_text(text)
    (entry,) = re.findall(r'```python\n("p95_step_s".*?)\n```', PAGE)
    metrics = folder / "harness/cases/metrics.py"
    metrics.write_text(
        metrics.read_text().replace(
            "METRICS: Mapping[str, Metric] = {",
            "METRICS: Mapping[str, Metric] = {\n    " + entry.replace("p95_step_s", "tail_step_s"),
        )
    )
    changes = "".join(re.findall(r"```diff\n(.*?)```", PAGE, re.S))
    (folder / "changes.patch").write_text(changes)
    subprocess.run(["git", "apply", "changes.patch"], cwd=folder, check=True)
    return folder


#: Launches the page's task on two ranks, and prints what they wrote down.
LAUNCHED = """
import json, sys
from pathlib import Path
from harness.cases import Catalogue, Device, Mode, Site
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.wire.messages import Count, LaunchSpec

known = Catalogue()
case = Site(device=Device.CPU, backend="gloo", nodes=(2,)).case("ddp/mlp-nano", Mode.WEAK)
case = known.normalise(case)
out = Path(sys.argv[1])
spec = LaunchSpec(launch="l", case=case, out=str(out), task=Count(times=3), files=known.files(case))
worlds = open_worlds(known.get("engines", "local"), Where())
try:
    worlds.launch(spec, lambda step: None)
finally:
    worlds.close()
print(json.dumps([json.loads(path.read_text())["checks"] for path in sorted(out.glob("rank?.json"))]))
"""


def run(folder: Path, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_a_command(tree: Path) -> None:
    assert run(tree, "-m", "harness", "report", "count", ".") == " 0 runs\n"
    run(tree, "-m", "harness.interface.schema")
    schema = json.loads((tree / "harness/interface/schema/answers.schema.json").read_text())
    assert "report count" in schema["properties"]
    run(tree, "scripts/pages.py")
    assert "## report count" in (tree / "docs/options.md").read_text()


def test_a_feature(tree: Path) -> None:
    """Its sentence is in the report of a record of before, which lacks the reading."""
    assert " launches send their greetings" in run(tree, "-m", "harness", "report", SAMPLE)


def test_a_metric_and_a_reading(tree: Path) -> None:
    """Rules may ask for both, and the schema has the reading."""
    run(tree, "-m", "harness.record.schema")
    assert '"evicted"' in (tree / "harness/record/schema/record.schema.json").read_text()
    rules = tree / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "tail"\ncase = "ddp/*"\nmetric = "tail_step_s"\nat_most = 1.0\n'
        'unit = "s"\nsource = "requirement"\n'
        '[[rule]]\nname = "undisturbed"\ncase = "ddp/*"\nmetric = "evicted"\nat_most = 100.0\n'
        'unit = "1"\nsource = "requirement"\n'
    )
    shown = run(tree, "-m", "harness", "check", "thresholds", str(rules))
    assert "tail" in shown and "undisturbed" in shown


@pytest.mark.full
def test_a_reading_is_measured(tree: Path, tmp_path: Path) -> None:
    case = ["single/mlp-nano", "--cpus", "1", "--worst-pair", "--no-timeline"]
    run(tree, "-m", "harness", "run", *case, "--results", str(tmp_path), status=5)  # without a rule
    (record,) = tmp_path.glob("runs/*/*/record.json")
    timed = [x for x in json.loads(record.read_text())["launches"] if x["purpose"] == "timed"]
    assert timed and all(rank["evicted"] >= 0 for x in timed for rank in x["ranks"])


def test_a_ranks_task(tree: Path, tmp_path: Path) -> None:
    """Two real ranks do it."""
    checks = json.loads(run(tree, "-c", LAUNCHED, str(tmp_path / "out")))
    assert [(c["name"], c["ok"]) for (c,) in checks] == [("ranks counted", True)] * 2
