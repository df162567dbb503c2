"""The answer of a command, and how it reports a record that fails verification."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.analysis.verify import unsealed
from harness.base.documents import Json
from harness.base.errors import Exit, ScaleproofError
from harness.interface.report import text
from harness.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``document`` is printed with ``--json``, ``lines`` without; then the error, if any.

    ``warnings`` stand among the lines; where programs read a document or a table they go to stderr.
    """

    document: Json
    lines: Sequence[str]
    exit: Exit = Exit.PASSED
    error: ScaleproofError | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command as it was asked for.

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
    """The answer; a failure where something is wrong with these records, and what that is, but for
    a ``table`` that programs read.
    """
    folders = ((run, path if path.is_dir() else path.parent) for run, path in runs)
    doubts = [(folder, unsealed(run, folder)) for run, folder in folders]
    return doubted(answer, doubts, table=table)


def doubted(answer: Answer, doubts: Sequence[tuple[Path, str]], *, table: bool = False) -> Answer:
    """Says of runs whose ``doubts`` are known why nobody vouches for each, if so."""
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
    """The document with that in it: among a record's notes, or as a summary's headline and exit."""
    if isinstance(document, RunRecord):
        return replace(document, notes=(*document.notes, *warnings))
    if isinstance(document, Mapping) and "headline" in document and "exit" in document:
        remarks = [*document.get("remarks", ()), *warnings]
        headline = f"NOT VERIFIED, recorded as {document['headline']}"
        exit_ = int(Exit.FAILED)
        return {**document, "headline": headline, "exit": exit_, "remarks": remarks}
    return document
