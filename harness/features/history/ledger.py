"""The ledger: a bare git repository with one commit per nightly run, which serves as the axis of
asv.

asv draws one value for each commit. The axis is a separate repository, because torch, driver and
NCCL may change although the commit of the suites does not. Its file ``subject.json`` names the
measured software, and each commit has the date of its measurement. A nightly run whose software did
not change has a commit too. The ledger depends only on the nightly runs. Two machines that ingest
the same runs in any order get the same commit hashes.
"""

import datetime
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import files
from harness.base.errors import RecordError
from harness.features.history.night import Night

BRANCH = "main"
_WHO = "scaleproof <scaleproof@localhost>"
_ROOT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
#: What may make git run programs or read another configuration.
_FOREIGN = ("hooks", "commondir", "config.worktree")


def _secure(ledger: Path) -> None:
    """Replace the ledger's configuration and remove its hooks.

    A folder of results may come from somebody else, and git and asv would run the programs that its
    configuration and hooks name. Raise RecordError if the ledger is a link or no folder.
    """
    if ledger.is_symlink() or not ledger.is_dir():
        raise RecordError(
            "the ledger is not a folder",
            where=str(ledger),
            fix=f"rm {ledger} && scaleproof history add RUN: this rebuilds the ledger",
        )
    config = ledger / "config"
    if config.is_symlink() or not config.is_file() or config.read_bytes() != _CONFIG.encode():
        files.write({config: _CONFIG})
    for path in map(ledger.joinpath, _FOREIGN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _git(ledger: Path, *arguments: str, text: str = "") -> str:
    """Run a git command on the ledger and return its output; raise RecordError if it fails."""
    _secure(ledger)
    done = subprocess.run(
        ["git", "--git-dir", str(ledger), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"},
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        raise RecordError(
            f"git {arguments[0]} failed: {done.stderr.strip()}",
            where=str(ledger),
            fix=f"rm -r {ledger} && scaleproof history add RUN: this rebuilds the ledger",
        )
    return done.stdout


def write(path: Path, nights: Sequence[Night]) -> dict[str, str]:
    """Make the ledger contain exactly these nightly runs in their order.

    Return the commit of each run.

    A broken ledger is renamed and rebuilt.
    """
    try:
        known = _known(path)
    except RecordError:
        _aside(path)
        known = []
    alike = 0
    while alike < min(len(known), len(nights)) and known[alike][1] == nights[alike].run:
        alike += 1
    if alike < len(nights) or alike < len(known) or not known:
        _import(path, nights[alike:], known[alike - 1][0] if alike else None)
        known = _known(path)
    named = {run: commit for commit, run in known}
    _tag(path, _tags(nights, named))
    return named


def _tags(nights: Sequence[Night], commits: Mapping[str, str]) -> dict[str, str]:
    """Return a tag for each version, such as ``torch-2.14.0``, with the commit of its first run.

    The page of asv marks these tags.
    """
    known: dict[str, str] = {}
    for night in nights:
        for name, version in sorted(night.subject.items()):
            shown = name.removeprefix("nvidia-").partition("-cu")[0]
            if shown in ("torch", "nccl", "driver", "suite") and version != "none":
                tag = re.sub(r"[^\w.-]+", "-", f"{shown}-{version}")
                known.setdefault(tag, commits[night.run])
    return known


def _tag(path: Path, wanted: Mapping[str, str]) -> None:
    """Make the tags of the ledger equal to the wanted ones."""
    listed = _git(path, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/tags")
    present = dict(line.split(" ") for line in listed.splitlines())
    moves = [f"update refs/tags/{t} {c}\n" for t, c in wanted.items() if present.get(t) != c]
    moves += [f"delete refs/tags/{t}\n" for t in present if t not in wanted]
    if moves:
        _git(path, "update-ref", "--stdin", text="".join(moves))


def commits(path: Path) -> dict[str, str]:
    """Return the commit of each run on a ledger; empty if there is no ledger."""
    return {run: commit for commit, run in _known(path)} if path.exists() else {}


def root(path: Path) -> str:
    """Return the commit before the first nightly run."""
    return _git(path, "rev-list", "--max-parents=0", BRANCH).strip()


def _known(path: Path) -> list[tuple[str, str]]:
    """Return (commit, run) of every nightly run, oldest first; create an empty ledger if there is
    none.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        initialise = ["git", "init", "--quiet", "--bare", f"--initial-branch={BRANCH}", str(path)]
        subprocess.run(initialise, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})
        return []
    if not _git(path, "for-each-ref", f"refs/heads/{BRANCH}").strip():
        return []
    log = _git(
        path, "log", "--reverse", "--format=%H %(trailers:key=Run,valueonly,separator=)", BRANCH
    )
    _git(path, "rev-list", "--objects", "--quiet", BRANCH)  # fails if an object is missing
    pairs = [line.partition(" ")[::2] for line in log.splitlines()]
    return [(commit, run.strip()) for commit, run in pairs[1:]]


def _aside(path: Path) -> None:
    """Rename a broken ledger, so that it can be inspected."""
    aside = path.with_name(f"{path.name}.broken")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    _known(path)


def _import(path: Path, nights: Sequence[Night], parent: str | None) -> None:
    """Commit these nightly runs after ``parent`` in one transaction."""
    stream = []
    before = parent
    if parent is None:  # asv needs a commit to start from
        stream.append(_commit("ledger", _ROOT, {"run": "root"}, "", 1))
        before = ":1"
    for mark, night in enumerate(nights, start=2):
        message = f"{title(night.subject)}\n\nRun: {night.run}"
        content = {**night.subject, "run": night.run}
        stream.append(_commit(message, night.when, content, before or "", mark))
        before = f":{mark}"
    if not stream:  # the newest runs were removed, so the branch only moves back
        stream.append(f"reset refs/heads/{BRANCH}\nfrom {parent}\n\n")
    _git(path, "fast-import", "--quiet", "--force", text="".join(stream))


def _commit(
    message: str, when: datetime.datetime, variables: Mapping[str, str], parent: str, mark: int
) -> str:
    """Return a commit command for ``git fast-import``."""
    text = json.dumps(dict(variables), indent=1, sort_keys=True) + "\n"
    date = f"{_WHO} {int(when.timestamp())} +0000"
    head = "" if parent else f"reset refs/heads/{BRANCH}\n"
    after = f"from {parent}\n" if parent else ""
    return (
        f"{head}commit refs/heads/{BRANCH}\nmark :{mark}\nauthor {date}\ncommitter {date}\n"
        f"data {len(message.encode())}\n{message}\n{after}"
        f"M 100644 inline subject.json\ndata {len(text.encode())}\n{text}\n"
    )


def title(subject: Mapping[str, str]) -> str:
    """Return the software versions of a nightly run in one line."""
    nccl = next((value for key, value in subject.items() if key.startswith("nvidia-nccl")), None)
    sentence = f"torch {subject.get('torch', 'n/a')}" + (f" nccl {nccl}" if nccl else "")
    driver = subject.get("driver", "none")
    return sentence if driver == "none" else f"{sentence} driver {driver}"


def run_at(path: Path, commit: str) -> str | None:
    """Return the run of a commit, which need not be on the branch any more.

    Return None if the commit has no run.
    """
    if not (path / "HEAD").is_file():
        return None
    try:
        run = json.loads(_git(path, "show", f"{commit}:subject.json"))["run"]
    except RecordError:
        return None
    return None if run == "root" else str(run)
