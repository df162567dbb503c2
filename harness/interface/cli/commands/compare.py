"""The command ``compare``: two runs on one hardware class, or two interleaved environments."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis import compare
from harness.analysis.compare import Comparison
from harness.analysis.reading import load, pooled, runs_in
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.cases.metrics import COMPARABLE
from harness.interface.cli import environments, measuring
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.report import comparison, text
from harness.measure import interleaving
from harness.measure.interleaving import Difference

HELP = {
    "compare": "compare two runs on one hardware class",
}
EXAMPLES = {
    "compare": (
        "compare BEFORE AFTER --fail-on worse",
        "compare old/bin/python new/bin/python --interleave ddp/decoder-tiny/weak --gpus 8",
    ),
}


Software = Mapping[str, Mapping[str, str]]


class Interleaved(TypedDict):
    cases: Sequence[Difference]
    setups: Software
    run: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "compare": (Comparison, Interleaved),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument(
        "a",
        type=Path,
        metavar="A",
        help="a run, or a folder in which harness.measure_steps recorded starts of a training; with"
        " --interleave a Python environment",
    )
    sub.add_argument("b", type=Path, metavar="B", help="the run to compare with A")
    sub.add_argument("--metric", default="step_s", choices=COMPARABLE, help="the metric to compare")
    sub.add_argument(
        "--fail-on",
        choices=("worse",),
        help="exit with 1 if B is worse than A in any case, and with 10 if B lacks a case of A",
    )
    sub.add_argument(
        "--force",
        action="store_true",
        help="compare runs that are not comparable, and mark the result",
    )
    sub.add_argument(
        "--every", action="store_true", help="also print other metrics that did not change"
    )
    sub.add_argument(
        "--interleave",
        action="append",
        default=[],
        metavar="CASE",
        help="measure this case in the environments A and B, in the same blocks",
    )
    measuring.add_measuring_options(sub, "cases", "scripts", "records")


def act(asked: Asked) -> Answer:
    args = asked.options
    if args.interleave:
        return _interleaved(asked)
    sides = [[(load(path), path) for path in runs_in(side)] for side in (args.a, args.b)]
    a, b = (pooled([run for run, _ in side]) for side in sides)
    compared = compare.compare(a, b, args.metric, force=args.force)
    both = any(row.ratio is not None for row in compared.rows)
    readings = [row.reading for row in compared.rows]
    verdict = compare.gate(readings) if args.fail_on else Exit.PASSED
    status = Exit.PASSED if both else Exit.NOTHING_JUDGED
    lines = comparison.lines(a, b, compared, text.columns(), every=args.every)
    answer = Answer(
        document=to_doc(compared),
        lines=lines,
        exit=verdict or status,
    )
    return vouched(answer, [start for side in sides for start in side])


def _interleaved(asked: Asked) -> Answer:
    """Measure each case's largest world in both environments until the difference is decided."""
    args = asked.options
    setups = (("A", _python(args.a)), ("B", _python(args.b)))
    session, cases = environments.interleavers(asked, args.interleave, setups)
    differences = []
    with session:
        for case, interleaver in cases:
            note = session.progress.note
            differences.append(interleaving.compared(interleaver, case.id, "A", "B", note))
    run = session.save(complete=True)
    lines = comparison.interleaved(differences, setups, run.setups, text.columns())
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    worse = args.fail_on and any(
        difference.reading is compare.Reading.SLOWER for difference in differences
    )
    open_ = any(difference.reading is compare.Reading.UNDECIDED for difference in differences)
    exit_ = Exit.FAILED if worse else Exit.INCONCLUSIVE if open_ else Exit.PASSED
    document = {"cases": to_doc(tuple(differences)), "setups": to_doc(dict(run.setups))}
    return Answer(document={**document, "run": str(session.run.folder)}, lines=lines, exit=exit_)


def _python(path: Path) -> str:
    """Return the interpreter ``path``, or the interpreter of the environment's folder ``path``."""
    named: Sequence[Path] = (path, path / "bin" / "python")
    python = next((executable for p in named if (executable := shutil.which(str(p)))), None)
    if python is None:
        raise SpecError(
            f"{path} is no Python environment",
            expected="a folder with bin/python, or an interpreter",
            fix="python -m venv new && new/bin/pip install torch==VERSION scaleproof",
        )
    return str(Path(python).absolute())
