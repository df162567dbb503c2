"""The answer of a command, and the warning it prints for a record that fails verification."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.documents import Json
from harness.base.errors import Exit, ScaleproofError
from harness.interface.report import text
from harness.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output of a command.

    The program prints ``document`` if ``--json`` is given, and ``lines`` otherwise. Then it reports
    ``error``, if there is one. ``warnings`` are part of ``lines``. They are also printed to stderr
    if the output is for programs (a document or a table).
    """

    document: Json
    lines: Sequence[str]
    exit: Exit = Exit.PASSED
    error: ScaleproofError | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command that the user typed.

    ``command`` is its name of one or two words, and ``words`` are all words that were typed.
    ``script`` are the words after ``--``: the command of a user's script.
    """

    command: str
    options: argparse.Namespace
    words: Sequence[str]
    script: Sequence[str] = ()


def vouched(
    answer: Answer, runs: Iterable[tuple[RunRecord, Path]], *, table: bool = False
) -> Answer:
    """Return the answer. If one of these runs is not verified, add a warning and set FAILED.

    The warning is not added to the lines of a ``table``, because programs read these.
    """
    from harness.analysis.verify import unsealed  # needs numpy, which help texts do not need

    folders = ((run, path if path.is_dir() else path.parent) for run, path in runs)
    doubts = [(folder, unsealed(run, folder)) for run, folder in folders]
    return doubted(answer, doubts, table=table)


def doubted(answer: Answer, doubts: Sequence[tuple[Path, str]], *, table: bool = False) -> Answer:
    """Return the answer with a warning for each path whose run is not verified.

    ``doubts`` are pairs of a path and the reason, which is empty for a verified run.
    """
    warnings = []
    for path, reason in doubts:
        if reason:
            folder = path if path.is_dir() else path.parent
            warnings.append(f"NOT VERIFIED: {reason}: scaleproof verify {text.shown(folder)}")
    if not warnings:
        return answer
    lines = [line for warning in warnings for line in text.wrap(f" {warning}", text.columns(), 1)]
    return replace(
        answer,
        document=_amended(answer.document, warnings),
        lines=answer.lines if table else [*answer.lines, *lines],
        exit=Exit.FAILED,
        warnings=lines,
    )


def _amended(document: Any, warnings: Sequence[str]) -> Any:
    """Return the document with the warnings added to a record's notes or a summary's headline."""
    if isinstance(document, RunRecord):
        return replace(document, notes=(*document.notes, *warnings))
    if isinstance(document, Mapping) and "headline" in document and "exit" in document:
        remarks = [*document.get("remarks", ()), *warnings]
        headline = f"NOT VERIFIED, recorded as {document['headline']}"
        exit_ = int(Exit.FAILED)
        return {**document, "headline": headline, "exit": exit_, "remarks": remarks}
    return document
