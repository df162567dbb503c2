"""Which run was ingested last: what ``asv run`` reads."""

import json
import subprocess
from pathlib import Path


def latest_run(results: Path) -> Path | None:
    """The folder of the run at the ledger's tip; None without a ledger or when it is gone."""
    ledger = results / "axis.git"
    if not (ledger / "HEAD").is_file():
        return None
    shown = subprocess.run(
        ["git", "--git-dir", str(ledger), "show", "main:subject.json"],
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
