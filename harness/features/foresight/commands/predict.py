"""The command ``predict``: predict larger world sizes from small ones of runs or of a table."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from harness.analysis.reading import load
from harness.analysis.results import results
from harness.base import files
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, LaunchError, SpecError, nearest
from harness.cases import CaseSpec, Catalogue
from harness.cases.site import parse_nodes
from harness.cases.targets import changed
from harness.features.foresight.held_out import Evaluation, Score, evaluate
from harness.features.foresight.outlook import (
    MissingInputError,
    Outlook,
    Outlook as SizeOutlook,
    outlooks,
)
from harness.features.foresight.own import runs
from harness.features.foresight.own.ladders import foresee
from harness.features.foresight.own.runs import MeasuredRung
from harness.features.foresight.prediction import NotPredicted, Predicted
from harness.features.foresight.published.table import (
    PublishedTable,
    Refused,
    Refused as RefusedTable,
    read,
)
from harness.features.foresight.report import outlooks as shown, scores
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.report import text
from harness.measure.describing import described
from harness.record import Described, Reason, RunRecord

HELP = {
    "predict": "predict larger world sizes from the small ones of runs or of a published table",
}
EXAMPLES = {
    "predict": (
        "predict results/runs/*/* --to 64x8",
        "predict --table ladder.json --to 1024 --hold 0.9",
    ),
}

#: Predictions of worlds that exceed the largest measured one by this factor say so.
FAR = 8
#: With this many measured sizes, predictions of far larger worlds have an interval.
ENOUGH = 3


class ForetoldTable(TypedDict):
    id: str
    family: str
    notes: Sequence[str]
    taught_by: Sequence[str]
    predicted: Sequence[Predicted]
    refused: Sequence[NotPredicted]


class Scores(TypedDict):
    by_table: Sequence[Score]
    by_family: Sequence[Score]
    whole: Score | None


class Foretold(TypedDict):
    tables: Sequence[ForetoldTable]
    scores: Scores
    refused: Sequence[RefusedTable]
    outlooks: Sequence[SizeOutlook]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "predict": (Foretold,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add runs or a file of tables, and the size to predict."""
    sub.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="runs with scaling sweeps")
    sub.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="scaling results in JSON, CSV, Markdown or TOML",
    )
    sub.add_argument(
        "--only",
        metavar="ID",
        help="use only the table or sweep with this id, and show all of its sizes",
    )
    sub.add_argument(
        "--sizes", action="store_true", help="print a row for every size of every table"
    )
    sub.add_argument("--to", metavar="N", help="world size to predict: 512, or 64x8")
    sub.add_argument(
        "--hold",
        type=float,
        default=0.9,
        metavar="E",
        help="the efficiency that --to should reach (default: 0.9)",
    )
    sub.add_argument("--page", type=Path, metavar="FILE", help="also write an HTML page of --to")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field or option of the case at --to, for runs",
    )
    sub.add_argument(
        "--calibrate-on",
        metavar="N,..",
        default="",
        help="learn from these sizes of runs only, and compare predictions for the other sizes",
    )
    options.add_path(sub)


def act(asked: Asked) -> Answer:
    """Return predictions with their errors, coverage and skill; nothing is judged."""
    args = asked.options
    _check(args)
    return _of_runs(asked) if args.table is None else _of_tables(args)


def _of_tables(args: argparse.Namespace) -> Answer:
    """Return predictions from the published tables in a file."""
    every = read(args.table)
    if args.only is not None:
        if args.only not in {table.id for table in every}:
            _unknown(args, [table.id for table in every])
        every = [table for table in every if table.id == args.only]
    tables = [t for t in every if isinstance(t, PublishedTable)]
    refused = [t for t in every if isinstance(t, Refused)]
    if not tables:
        listed = "; ".join(f"{refusal.id}: {refusal.why}" for refusal in refused[:3])
        raise SpecError(
            f"no table can be used ({listed})",
            where=str(args.table),
            expected="points with N, a step time or rate, and calibrate_on",
            fix="scaleproof predict --table results/published/scaling.json",
        )
    evaluation = evaluate(tables)
    width = text.columns()
    lines = scores.lines(evaluation, refused, args.sizes or len(every) == 1, width)
    further = list[Outlook]()
    if args.to:
        further, unsaid = _beyond(tables, _world(args.to)[0], args.hold)
        refused += unsaid
        for refusal in unsaid:
            lines += text.wrap(f" REFUSED  {refusal.id}, {refusal.why}", width, 10)
    for single in further:
        lines += shown.lines(single, width)
    if not args.sizes and len(every) > 1:
        lines += ["", f" size by size  scaleproof predict --table {text.shown(args.table)} --sizes"]
    return _answer(args, evaluation, refused, further, lines)


def _beyond(
    tables: Sequence[PublishedTable], to: int, hold: float
) -> tuple[list[Outlook], list[Refused]]:
    """Return predictions for a world of ``to`` devices, and the tables that lack an input."""
    further = list[Outlook]()
    refused = list[Refused]()
    for table in tables:
        try:
            further += outlooks(table, to, hold)
        except MissingInputError as unsaid:
            refused.append(Refused(id=table.id, why=str(unsaid)))
    return further, refused


def _of_runs(asked: Asked) -> Answer:
    """Return predictions from the scaling sweeps of runs, for ``--to`` or for held-out sizes."""
    args = asked.options
    catalogue = options.catalogue(args.path)
    loaded = [load(path) for path in args.runs]
    ladders, refused = _ladders(args, loaded, catalogue)
    sizes = _sizes(args.calibrate_on)
    lines = list[str]()
    further = list[Outlook]()
    compared = evaluate([])
    if sizes:
        tables = [runs.table(name, of, catalogue, on=sizes) for name, of in ladders.items()]
        refused += [t for t in tables if isinstance(t, Refused)]
        compared = evaluate([t for t in tables if isinstance(t, PublishedTable)])
        lines += scores.lines(compared, (), True, text.columns())
    if args.to:
        cases, unlike = cases_at(ladders, _world(args.to), measuring.settings(asked), catalogue)
        refused += unlike
        targets, note = _targets(ladders, cases, catalogue)
        lines += _wrapped(note, *_doubts(loaded))
        for name, target in targets.items():
            of = ladders[name]
            answers = foresee(name, of, target, catalogue, on=sizes, hold=args.hold)
            if isinstance(answers, Refused):
                refused.append(answers)
                continue
            bounded = [replace(outlook, bounded=_spans(args.to, of)) for outlook in answers]
            further += bounded
            lines += _foreseen(bounded, runs.table(name, of, catalogue, on=sizes), text.columns())
            lines += _wrapped(_far(args.to, of))
    refused = list({refusal.id: refusal for refusal in refused}.values())
    answer = _answer(args, compared, refused, further, [*lines, *_refusals(refused)])
    return vouched(answer, zip(loaded, args.runs, strict=True))


def _ladders(
    args: argparse.Namespace, loaded: Sequence[RunRecord], catalogue: Catalogue
) -> tuple[dict[str, list[MeasuredRung]], list[Refused]]:
    """Return the scaling sweeps of runs by their ids, and the runs that are refused.

    With ``--only``, return only the sweep with this id. Raise SpecError if there is no sweep.
    """
    foreign = list(_foreign(loaded, catalogue))
    left_out = {id(run) for run, _ in foreign}
    ladders = runs.ladders([run for run in loaded if id(run) not in left_out], catalogue)
    if not ladders and foreign:
        raise foreign[0][1]
    if not ladders:
        raise SpecError(
            "the runs contain no timed training",
            where=str(args.runs[0]),
            expected="a scaling sweep over at least two sizes",
            fix="scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    if args.only is not None and args.only not in ladders:
        _unknown(args, list(ladders))
    chosen = {name: of for name, of in ladders.items() if args.only in (None, name)}
    return chosen, [Refused(id=run.run, why=error.what) for run, error in foreign]


def _wrapped(*notes: str) -> list[str]:
    """Return notes as lines; an empty note has none."""
    return [line for note in notes if note for line in text.wrap(f" {note}", text.columns(), 1)]


def _refusals(refused: Sequence[Refused]) -> list[str]:
    """Return one sentence for each reason, with the tables and sweeps that it refuses."""
    lines = list[str]()
    for why in dict.fromkeys(refusal.why for refusal in refused):
        names = ", ".join(refusal.id for refusal in refused if refusal.why == why)
        lines += text.wrap(f" REFUSED  {why}: {names}", text.columns(), 10)
    return lines


def _foreign(
    loaded: Sequence[RunRecord], catalogue: Catalogue
) -> Iterator[tuple[RunRecord, SpecError]]:
    """Yield the runs of strategies or models that are not in the catalogue, with the reason."""
    for run in loaded:
        try:
            for case in (arm.case for plan in run.plans for arm in plan.arms):
                catalogue.files(case)
        except SpecError as error:
            yield (
                run,
                SpecError(
                    f"{error.what}: it is a file of the user (--path)", where=run.run, fix=error.fix
                ),
            )


def _doubts(loaded: Sequence[RunRecord]) -> Iterator[str]:
    """Yield a sentence for each run during which other processes used the cores."""
    for run in loaded:
        busy = (r for r in results(run) if r.doubt or r.reason is Reason.NOISY_HOST)
        if (result := next(busy, None)) is not None:
            why = result.doubt or result.detail
            yield f"{run.run}: its steps may be too long, and so the predictions: {why}"


def _spans(to: str, measured: Sequence[MeasuredRung]) -> bool:
    """Return whether the measured sizes are enough, or large enough, to bound a prediction."""
    sizes = {rung.case.world_size for rung in measured}
    return len(sizes) >= ENOUGH or _world(to)[0] < FAR * max(sizes)


def _far(to: str, measured: Sequence[MeasuredRung]) -> str:
    """Return a sentence if the predicted world is far larger than the largest measured one."""
    ranks, _ = _world(to)
    largest = max(rung.case.world_size for rung in measured)
    if ranks < FAR * largest:
        return ""
    return (
        f"{ranks} ranks are {ranks // largest} times the largest measured size ({largest}): costs"
        " that begin in between are not seen, and an error of a measured term grows with the ranks"
    )


def _foreseen(
    answers: Sequence[Outlook], table: PublishedTable | Refused, width: int
) -> Iterator[str]:
    """Yield the prediction from one scaling sweep and its assumptions."""
    for outlook in answers:
        yield from shown.lines(outlook, width)
    for note in table.notes if isinstance(table, PublishedTable) else ():
        yield from text.wrap(f" {note}", width, 1)


def _answer(
    args: argparse.Namespace,
    evaluation: Evaluation,
    refused: Sequence[Refused],
    further: Sequence[Outlook],
    lines: Sequence[str],
) -> Answer:
    """Return the document and the lines, including that of the page."""
    predicted = any(prediction.predicted for prediction in evaluation.predictions)
    return Answer(
        document=_document(evaluation, refused, further),
        lines=[*lines, *_page(args, further, refused)],
        exit=Exit.PASSED if further or predicted else Exit.NOTHING_JUDGED,
    )


def _page(
    args: argparse.Namespace, further: Sequence[Outlook], refused: Sequence[Refused]
) -> list[str]:
    """Write the requested page and return a line with its path."""
    if args.page is None:
        return []
    from harness.features.foresight.report.foresight_page import render

    of = str(args.table) if args.table else ", ".join(path.name for path in args.runs)
    files.put(args.page, render(further, refused, of).encode(), "--page")
    return [f" page          {args.page}"]


def cases_at(
    ladders: Mapping[str, Sequence[MeasuredRung]],
    world: tuple[int, tuple[int, ...]],
    settings: Mapping[str, Json],
    catalogue: Catalogue,
) -> tuple[dict[str, CaseSpec], list[Refused]]:
    """Return the case of each sweep at another size, and the sweeps that have no such case.

    For example, a sweep that states the share of each rank is measured at one size only. Raise
    SpecError if no sweep has such a case.
    """
    ranks, nodes = world
    cases = dict[str, CaseSpec]()
    errors = dict[str, SpecError]()
    for name, of in ladders.items():
        largest = of[-1].case
        try:
            at_size = largest.at(ranks, nodes or _cut(ranks, max(largest.nodes)))
            cases[name] = catalogue.normalise(changed(at_size, settings))
        except SpecError as error:
            errors[name] = error
    if not cases:
        raise next(iter(errors.values()))
    return cases, [Refused(id=name, why=error.what) for name, error in errors.items()]


def _targets(
    ladders: Mapping[str, Sequence[MeasuredRung]],
    cases: Mapping[str, CaseSpec],
    catalogue: Catalogue,
) -> tuple[dict[str, MeasuredRung], str]:
    """Return each case as a local agent describes it, and a note.

    If no agent can describe the cases, the note says so, and their memory and exchange are unknown.
    """
    try:
        answers = described(list(cases.values()), catalogue)
        note = ""
    except LaunchError as error:
        answers = [Described() for _ in cases]
        note = f"memory and exchange at that size are unknown: {error.what}"
    return {
        name: MeasuredRung(ladders[name][-1].run, case, single, None)
        for (name, case), single in zip(cases.items(), answers, strict=True)
    }, note


def _cut(ranks: int, per_node: int) -> tuple[int, ...]:
    """Return the number of ranks on each node. Only the last node may be partly filled."""
    whole, rest = divmod(ranks, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def _sizes(words: str) -> tuple[int, ...]:
    """Return the sizes of a text like ``1,2,4``; raise SpecError for fewer than two sizes."""
    if not words:
        return ()
    try:
        sizes = tuple(int(word) for word in words.split(","))
    except ValueError:
        sizes = ()
    if len(set(sizes)) < 2 or min(sizes) < 1:
        raise SpecError(
            f"--calibrate-on {words}",
            expected="two sizes or more, separated by commas",
            fix="--calibrate-on 1,2,4",
        )
    return sizes


def _world(words: str | None) -> tuple[int, tuple[int, ...]]:
    """Return the ranks, and the ranks of each node, of a text like ``512`` or ``64x8``.

    The ranks of each node are () if the text is a single number. Raise SpecError for other texts.
    """
    try:
        many, shape = parse_nodes(words or "")
    except SpecError:
        raise SpecError(
            f"--to {words or 'is missing'}",
            expected="a number of GPUs (512), or nodes x GPUs per node (64x8)",
            fix="--to 64x8",
        ) from None
    return (sum(shape), tuple(shape)) if shape else (many, ())


def _check(args: argparse.Namespace) -> None:
    if bool(args.runs) == (args.table is not None):
        raise SpecError(
            "both runs and a table were given" if args.runs else "no runs and no table were given",
            expected="runs with scaling sweeps, or --table FILE",
            fix="scaleproof predict results/runs/*/* --to 64x8",
        )
    if args.to is not None or (args.runs and not args.calibrate_on):
        _world(args.to)
    if args.page is not None and args.to is None:
        raise SpecError("--page needs a size to show", expected="--to N", fix="--to 64x8")
    for option in ("set", "calibrate_on"):
        if args.table is not None and getattr(args, option):
            raise SpecError(
                f"--{option.replace('_', '-')} applies to runs only",
                where=str(args.table),
                expected="the same facts as fields of the table (calibrate_on, mbs, microbatches)",
                fix=f"scaleproof predict --table {args.table} --sizes",
            )
    if not 0 < args.hold < 2:
        raise SpecError(f"--hold {args.hold}", expected="an efficiency above 0", fix="--hold 0.9")


def _unknown(args: argparse.Namespace, known: Sequence[str]) -> NoReturn:
    of = f"--table {args.table}" if args.table else " ".join(map(str, args.runs))
    raise SpecError(
        f"--only {args.only}: there is no such scaling sweep{nearest(args.only, known)}",
        where=str(args.table or args.runs[0]),
        expected=", ".join(known),
        fix=f"scaleproof predict {of}",
    )


def _document(
    evaluation: Evaluation, refused: Sequence[Refused], further: Sequence[Outlook]
) -> dict[str, Any]:
    tables = [
        {
            "id": prediction.table.id,
            "family": prediction.table.family,
            "notes": prediction.table.notes,
            "taught_by": prediction.taught_by,
            "predicted": prediction.predicted,
            "refused": prediction.refused,
        }
        for prediction in evaluation.predictions
    ]
    scores = {
        "by_table": evaluation.tables,
        "by_family": evaluation.families,
        "whole": evaluation.whole,
    }
    document: dict[str, Any] = to_doc(
        {"tables": tables, "scores": scores, "refused": refused, "outlooks": further}
    )
    return document
