"""The subject ledger: a bare git repository whose commits are measured subjects, one a run.

asv draws a value per commit. The suite's own commits hardly change while torch, driver and NCCL
do, so the axis is a repository of its own: each ingest commits ``subject.json``, dated when it was
measured. A night whose subject did not change gets a commit too: it is a sample.
"""

import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.base.errors import RecordError
from harness.record import RunRecord

BRANCH = "main"


def _git(
    ledger: Path, *arguments: str, text: str = "", env: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        ["git", "--git-dir", str(ledger), *arguments],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if done.returncode:
        raise RecordError(
            f"git {arguments[0]} failed: {done.stderr.strip()}", where=str(ledger),
            fix=f"git --git-dir {ledger} {' '.join(arguments)}",
        )  # fmt: skip
    return done.stdout.strip()


def subject(run: RunRecord) -> dict[str, str]:
    """What was measured: software and driver, never host or paths."""
    return {**run.software, "driver": run.machine.driver or "none", "run": run.run}


def open_ledger(path: Path) -> None:
    """Make the ledger with a root commit if it is not there: asv needs one to start."""
    if (path / "HEAD").is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["git", "init", "--quiet", "--bare", f"--initial-branch={BRANCH}", str(path)], check=True
    )
    _commit(path, {"run": "root"}, "ledger", "2020-01-01T00:00:00+00:00", parent=None)


def append(path: Path, run: RunRecord) -> tuple[str, datetime.datetime]:
    """Commit a run's subject; the commit's hash and date. A run that is there already keeps it."""
    open_ledger(path)
    commits = _git(path, "log", BRANCH, "--format=%H", f"--grep=^run {run.run}$")
    when = datetime.datetime.fromisoformat(run.started_at)
    if commits:
        return commits.splitlines()[0], when
    software = run.software
    nccl = next((v for k, v in software.items() if k.startswith("nvidia-nccl")), None)
    title = f"torch {software.get('torch', 'n/a')}" + (f" nccl {nccl}" if nccl else "")
    if run.machine.driver:
        title += f" driver {run.machine.driver}"
    parent = _git(path, "rev-parse", BRANCH)
    message = f"{title}\n\nrun {run.run}"
    return _commit(path, subject(run), message, run.started_at, parent=parent), when


def _commit(
    path: Path, content: Mapping[str, str], message: str, date: str, *, parent: str | None
) -> str:
    text = json.dumps(dict(content), indent=1, sort_keys=True) + "\n"
    blob = _git(path, "hash-object", "-w", "--stdin", text=text)
    tree = _git(path, "mktree", text=f"100644 blob {blob}\tsubject.json\n")
    who = {"NAME": "scaleproof", "EMAIL": "scaleproof@localhost", "DATE": date}
    env = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    parents = ("-p", parent) if parent else ()
    commit = _git(path, "commit-tree", tree, *parents, text=message, env=env)
    _git(path, "update-ref", f"refs/heads/{BRANCH}", commit)
    return commit
