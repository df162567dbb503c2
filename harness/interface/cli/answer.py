"""The answer of a verb: a document for programs, lines for people, and the exit status."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from harness.base.documents import Json
from harness.base.errors import Exit, ScaleproofError


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
    """The question to a verb: its name, its options, the words as typed, and those after ``--``."""

    verb: str
    options: argparse.Namespace
    words: Sequence[str]
    command: Sequence[str] = ()
