"""No success for a record that nobody vouches for: verbs that draw conclusions from one ask."""

from collections.abc import Iterable
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
    lines = list(answer.lines)
    for run, path in runs:
        folder = path if path.is_dir() else path.parent
        if reason := unsealed(run, folder):
            warning = f" NOT VERIFIED: {reason}: scaleproof verify {text.shown(folder)}"
            lines += text.wrap(warning, text.columns(), 1)
    if len(lines) == len(answer.lines):
        return answer
    return replace(answer, lines=answer.lines if table else lines, exit=Exit.FAILED)
