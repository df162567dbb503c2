"""Publish to Weights & Biases: one W&B run for each run.

Without an API key, the W&B runs are written to local files.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from harness.features.sharing.figures import figures
from harness.interface.report import digest
from harness.record import RunRecord

SINK = "a project of W&B; local files with WANDB_MODE=offline or without an API key"
TO = "scaleproof"
PACKAGE = "wandb"


def publish(runs: Sequence[tuple[RunRecord, Path]], to: str) -> str:
    """Write each run to the project ``to``.

    Without a connection, runs are written to ./wandb, and ``wandb sync`` sends them later.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE") or "offline" * ("WANDB_API_KEY" not in os.environ)
    for run, folder in runs:
        summary = digest.document(run)
        config = {"machine": run.machine.title, "torch": run.software.get("torch", "n/a")}
        with wandb.init(
            project=to,
            name=run.run,
            id=run.run,
            config={**config, "command": " ".join(run.settings.argv)},
            mode=mode or None,
        ) as theirs:
            for figure in figures(run):
                name = f"{figure.case}/{figure.measure}"
                ends = (("", figure.value), (" low", figure.low), (" high", figure.high))
                theirs.summary.update({name + e: v for e, v in ends if v is not None})
            theirs.summary.update({"headline": summary["headline"], "exit": summary["exit"]})
            rows = summary["verdicts"]
            if rows:
                columns = list(rows[0])
                table = wandb.Table(
                    columns, [[str(row[column]) for column in columns] for row in rows]
                )
                theirs.log({"verdicts": table})
            artifact = wandb.Artifact(f"record-{run.run}", type="scaleproof")
            artifact.add_file(str(folder / "record.json"))
            theirs.log_artifact(artifact)
    wandb.teardown()  # Before this returns, W&B still writes files in the background.
    return f"{to}: {len(runs)} runs{', offline: wandb sync wandb/offline-run-*' if mode else ''}"
