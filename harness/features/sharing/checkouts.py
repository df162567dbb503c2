"""Check out versions of a project as folders, each with an interpreter that imports from it.

Each version is unpacked from git once into a folder below the results. The user's clone is not
changed. Without an install command, a version runs in the current environment, and its files come
first on the import path.
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

#: Folders below a project's root that can contain its packages.
_SOURCES = ("src", ".")


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of the project.

    ``commit`` is its commit and ``asked`` the name by which the user requested it. ``edited`` is
    set if the commit holds uncommitted changes of the working tree.
    """

    asked: str
    commit: str
    edited: bool = False

    @property
    def short(self) -> str:
        return self.commit[:10]


def root_of(folder: Path) -> Path:
    """Return the root of the clone that contains a folder; raise SpecError if there is none."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except subprocess.CalledProcessError as error:
        raise SpecError(
            "this folder is not in a git repository",
            where=str(folder),
            expected="a clone of the project whose change is measured",
            fix="git clone REPOSITORY && cd PROJECT",
        ) from error


def base_of(project: Path, asked: str, head: str = "HEAD") -> Version:
    """Return the version from which a change started: the last common commit with ``asked``.

    Commits that were added to the branch ``asked`` since then are not part of the change.
    """
    try:
        commit = _git(project, "merge-base", f"{asked}^{{commit}}", head)
    except subprocess.CalledProcessError as error:
        raise SpecError(
            f"--base {asked}: {(error.stderr or '').strip() or 'no commit in common with HEAD'}",
            where=str(project),
            expected="a branch, tag or commit in this clone, with its history",
            fix="git fetch --unshallow origin; git branch --all",
        ) from error
    return Version(asked=asked, commit=commit)


def head_of(project: Path, asked: str | None) -> Version:
    """Return the changed version: a commit, or the working tree with its uncommitted changes."""
    if asked is not None:
        try:
            commit = _git(project, "rev-parse", "--verify", f"{asked}^{{commit}}")
        except subprocess.CalledProcessError as error:
            raise SpecError(
                f"--head {asked}: there is no such commit",
                where=str(project),
                expected="a branch, tag or commit in this clone",
                fix="git branch --all",
            ) from error
        return Version(asked=asked, commit=commit)
    nobody = ("-c", "user.name=scaleproof", "-c", "user.email=scaleproof@localhost")
    # ``git stash create`` makes a commit of the uncommitted changes, which is on no branch.
    edited = _git(project, *nobody, "stash", "create")
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
    """Unpack a version's files below ``into``, unless they exist already.

    Args:
        data: paths that are not in git. The checkout gets symbolic links to them.
        install: a shell command with {source} and {folder} that creates ``{folder}/bin/python``.
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
    """Write a script that runs this interpreter with the version's files first on the import path.

    Return the path of the script.
    """
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
    """Run the user's install command in a checkout and return its interpreter.

    Raises LaunchError with the last line of the output if the command fails.
    """
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
            f"the install command failed for this version: {output[-1]}",
            where=command,
            expected=f"the command exits with 0 and creates {python}",
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
