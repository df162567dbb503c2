"""No success for a record that nobody vouches for: verbs that draw conclusions from one ask."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.verify import unsealed
from harness.base.errors import Exit
from harness.interface.cli.answer import Answer
from harness.interface.report import text
from harness.record import RunRecord


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
    lines = list(answer.lines)
    for path, reason in doubts:
        if reason:
            folder = path if path.is_dir() else path.parent
            warning = f" NOT VERIFIED: {reason}: scaleproof verify {text.shown(folder)}"
            lines += text.wrap(warning, text.columns(), 1)
    if len(lines) == len(answer.lines):
        return answer
    return replace(answer, lines=answer.lines if table else lines, exit=Exit.FAILED)
