"""Publish to MLflow: one MLflow run for each run, with figures, verdicts and the page."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from harness.features.sharing.figures import figures
from harness.interface.report import digest
from harness.record import RunRecord

SINK = "an MLflow server, or a database such as sqlite:///mlflow.db"
TO = "sqlite:///mlflow.db"
PACKAGE = "mlflow"


def publish(runs: Sequence[tuple[RunRecord, Path]], to: str) -> str:
    """Write each run to MLflow under its name. Publishing a run again adds another MLflow run."""
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient(tracking_uri=to)
    known = client.get_experiment_by_name("scaleproof")
    experiment = known.experiment_id if known else client.create_experiment("scaleproof")
    for run, folder in runs:
        at_ms = int(datetime.fromisoformat(run.started_at).timestamp() * 1e3)
        summary = digest.document(run)
        tags = {
            "mlflow.note.content": str(summary["headline"]),
            "scaleproof.exit": str(summary["exit"]),
            "scaleproof.machine": run.machine.key,
            "scaleproof.machine_title": run.machine.title,
            "scaleproof.torch": run.software.get("torch", "n/a"),
        }
        theirs = client.create_run(experiment, start_time=at_ms, tags=tags, run_name=run.run)
        metrics = []
        for figure in figures(run):
            for ending, value in (("", figure.value), (" low", figure.low), (" high", figure.high)):
                if value is not None:
                    name = _named(f"{figure.case}/{figure.measure}{ending}")
                    metrics.append(Metric(name, value, at_ms, 0))
        client.log_batch(theirs.info.run_id, metrics=metrics)
        client.log_dict(theirs.info.run_id, summary, "verdicts.json")
        client.log_artifact(theirs.info.run_id, str(folder / "record.json"))
        if (page := folder / "report.html").is_file():
            client.log_artifact(theirs.info.run_id, str(page))
        status = "FINISHED" if summary["exit"] in (0, 5) else "FAILED"
        end_ms = at_ms + int(run.elapsed_s * 1e3)
        client.set_terminated(theirs.info.run_id, status, end_time=end_ms)
    return f"{to}: {len(runs)} runs in the experiment scaleproof"


def _named(text: str) -> str:
    """Return the text with all characters replaced that MLflow does not allow in names.

    It allows letters, digits, ``_``, ``-``, ``.``, ``/``, ``:`` and spaces.
    """
    return "".join(c if c.isalnum() or c in "_-./: " else "-" for c in text)[:250]
