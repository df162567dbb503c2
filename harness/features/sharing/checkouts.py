"""Checkouts: two versions of a project as folders, each with an interpreter that imports from it.

A version is what git has of it, unpacked once below the results: nothing of the user's clone is
touched. Without an install command it runs in this environment, its own files first on the path.
"""

import io
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import LaunchError, SpecError

#: Where Python projects keep their packages, below their root.
_SOURCES = ("src", ".")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A commit, what it was asked for as, and whether it is the working tree as it is."""

    asked: str
    commit: str
    edited: bool = False

    @property
    def short(self) -> str:
        return self.commit[:10]


def root_of(folder: Path) -> Path:
    """The clone that a folder is in; SpecError where it is in none."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except subprocess.CalledProcessError as error:
        raise SpecError(
            "not in a git repository",
            where=str(folder),
            expected="a clone of the project whose change is measured",
            fix="git clone REPOSITORY && cd PROJECT",
        ) from error


def base_of(project: Path, asked: str, head: str = "HEAD") -> Version:
    """Where a change began: the last commit that ``head`` and this version have in common.

    What others have added to the branch since then is no part of the change.
    """
    try:
        commit = _git(project, "merge-base", f"{asked}^{{commit}}", head)
    except subprocess.CalledProcessError as error:
        raise SpecError(
            f"--base {asked}: {(error.stderr or '').strip() or 'it shares no commit with HEAD'}",
            where=str(project),
            expected="a branch, tag or commit that is in this clone, with its history",
            fix="git fetch --unshallow origin; git branch --all",
        ) from error
    return Version(asked=asked, commit=commit)


def head_of(project: Path, asked: str | None) -> Version:
    """The changed version: a commit, or the working tree with what is not committed yet."""
    if asked is not None:
        try:
            commit = _git(project, "rev-parse", "--verify", f"{asked}^{{commit}}")
        except subprocess.CalledProcessError as error:
            raise SpecError(
                f"--head {asked}: no such commit",
                where=str(project),
                expected="a branch, tag or commit that is in this clone",
                fix="git branch --all",
            ) from error
        return Version(asked=asked, commit=commit)
    nobody = ("-c", "user.name=scaleproof", "-c", "user.email=scaleproof@localhost")
    edited = _git(project, *nobody, "stash", "create")  # a commit that no branch has
    commit = edited or _git(project, "rev-parse", "HEAD")
    return Version(
        asked="the working tree" if edited else "HEAD", commit=commit, edited=bool(edited)
    )


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The files of a version, and the interpreter that imports from them."""

    folder: Path
    python: Path


def unpacked(
    project: Path, version: Version, into: Path, *, data: Sequence[str] = (), install: str = ""
) -> Checkout:
    """A version's files below ``into``, once; ``data`` are paths that are not in git, and shared.

    Args:
        install: a shell command with {source} and {folder} that leaves ``{folder}/bin/python``.
    """
    place = (into / version.commit).absolute()
    source = place / "source"
    whole = place / "whole"
    if not whole.is_file():
        words = ["git", "-C", str(project), "archive", "--format=tar", version.commit]
        packed = subprocess.run(words, capture_output=True, check=True).stdout
        source.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(source, filter="tar")
        whole.touch()
    for path in data:
        shared = source / path
        if not shared.exists() and (project / path).exists():
            shared.parent.mkdir(parents=True, exist_ok=True)
            shared.symlink_to((project / path).resolve())
    python = _installed(source, place, install) if install else _wrapped(source, place)
    return Checkout(folder=source, python=python)


def _wrapped(source: Path, place: Path) -> Path:
    """This environment's interpreter, with the version's own files before what is installed."""
    python = place / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    first = ":".join(
        str((source / name).resolve()) for name in _SOURCES if (source / name).is_dir()
    )
    here = shlex.quote(first)
    words = (
        f'exec env PYTHONPATH={here}"${{PYTHONPATH:+:$PYTHONPATH}}" {shlex.quote(sys.executable)}'
    )
    python.write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def _installed(source: Path, place: Path, install: str) -> Path:
    """Runs the user's command in a checkout; LaunchError with its last line where it fails."""
    environment = place / "environment"
    python = environment / "bin" / "python"
    done = place / "installed"
    if done.is_file() and done.read_text(encoding="utf-8") == install:
        return python
    command = install
    for key, path in (("source", source), ("folder", environment)):
        command = command.replace(f"{{{key}}}", shlex.quote(str(path)))
    ended = subprocess.run(
        command,
        shell=True,
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if ended.returncode or not python.exists():
        output = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
        raise LaunchError(
            f"this version cannot be installed: {output[-1]}",
            where=command,
            expected=f"exit status 0 and {python}",
            fix=f"cd {source} && {command}",
        )
    done.write_text(install, encoding="utf-8")
    return python


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
        errors="replace",
    )
    return done.stdout.strip()
