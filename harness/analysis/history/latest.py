"""Which run a commit of the ledger stands for: what ``asv run`` reads."""

import json
import subprocess
from pathlib import Path


def run_of(results: Path, commit: str = "main") -> Path | None:
    """The folder of that commit's run; None without a ledger or when the run is gone."""
    ledger = results / "axis.git"
    if not (ledger / "HEAD").is_file():
        return None
    shown = subprocess.run(
        ["git", "--git-dir", str(ledger), "show", f"{commit}:subject.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        return None
    run = json.loads(shown.stdout)["run"]
    records = [*results.glob(f"runs/*/{run}/record.json"), *results.glob("samples/*/record.json")]
    for path in records:
        if json.loads(path.read_text())["run"] == run:
            return path.parent
    return None
