"""The commands ``history add`` (add runs to the history) and ``history`` (show changes)."""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

from harness.base.documents import to_doc
from harness.base.errors import Exit, RecordError
from harness.features.history.ingest import Ingested
from harness.features.history.offenders import NodeRecord
from harness.features.history.trends import Turn
from harness.features.history.vouching import VerifiedNights
from harness.interface import options
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

HELP = {
    "history add": "add runs to the history",
    "history": "show performance changes over time: which case, when, and by how much",
}
EXAMPLES = {
    "history add": (
        "history add RUN",
        "history add results/runs/*/*",
    ),
    "history": (
        "history",
        "history ddp --html history.html --fail-on regressed",
    ),
}


#: The argument that selects nodes instead of cases.
NODES = "nodes"


class TrendRow(TypedDict):
    machine: str
    case: str
    figure: str
    unit: str
    status: str
    why: str
    changes: Sequence[Turn]
    nights: Sequence[Mapping[str, Any]]


class History(TypedDict):
    series: Sequence[TrendRow]


class NodeHistory(TypedDict):
    nodes: Sequence[NodeRecord]


class Added(TypedDict):
    series: Sequence[Ingested]
    refused: Sequence[str]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "history": (History, NodeHistory),
    "history add": (Added,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments of the command: runs to add, or the part of the history to show."""
    if command == "history add":
        sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    else:
        sub.add_argument(
            "case",
            nargs="?",
            default="",
            help="a case or a part of its name; or 'nodes' for nodes that several runs reported",
        )
        sub.add_argument(
            "--figure",
            default="",
            metavar="NAME",
            help="show only this: step_time, peak_memory, ...",
        )
        sub.add_argument("--html", type=Path, metavar="FILE", help="also write an HTML page")
        sub.add_argument(
            "--fail-on", choices=("regressed",), help="exit with 1 if a figure became worse"
        )
    options.add_results(sub)


def act(asked: Asked) -> Answer:
    return _ingested(asked) if asked.command == "history add" else _history(asked)


def _ingested(asked: Asked) -> Answer:
    """Add runs to the history, and return a line for each machine that received values."""
    from harness.features.history import asv_page
    from harness.features.history.ingest import ingest, summary

    refused: list[RecordError] = []
    several = len(asked.options.runs) > 1
    note = refused.append if several else None
    added = ingest(asked.options.runs, asked.options.results, note)
    lines = [f" {summary(ingested)}" for ingested in added]
    lines += [f" not added: {error.where}: {error.what}" for error in refused]
    _introduce_to_asv()
    # A clone has a configuration of asv in its folder.
    config = ""
    if not Path("asv.conf.json").exists():
        config = f" --config {shlex.quote(str(asv_page.configure(asked.options.results)))}"
    width = text.columns()
    following = f" next     scaleproof history; asv publish{config} && asv preview{config}"
    lines += ["", *text.wrap_command(following, width, 10)]
    for machine in sorted({ingested.machine for ingested in added}):
        if pair := comparable(asked.options.results, machine):
            commits = " ".join(commit[:10] for commit in pair)
            comparison = f" compare  asv compare{config} {commits} --machine {machine}"
            lines += text.wrap_command(comparison, width, 10)
    changed = any(error.what.startswith("NOT VERIFIED") for error in refused)
    exit_ = Exit.FAILED if changed else Exit.PASSED if added else Exit.NOTHING_JUDGED
    document = {"series": to_doc(tuple(added)), "refused": [str(e) for e in refused]}
    return Answer(document=document, lines=lines, exit=exit_)


def _first(results: Path) -> str:
    """Return the command that begins a history: add the newest run, or make one."""
    runs = [path.parent for path in results.glob("runs/*/*/record.json")]
    if not runs:
        return "scaleproof run suites --cpus 2"
    newest = max(runs, key=lambda run: run.name)
    return shlex.join(["scaleproof", "history", "add", str(newest), "--results", str(results)])


def _introduce_to_asv() -> None:
    """Describe this machine to asv, unless its user has; ``asv run`` asks for it otherwise."""
    from asv.machine import Machine, MachineCollection

    if not Path(MachineCollection.get_machine_file_path()).exists():
        name = Machine.get_unique_machine_name()
        MachineCollection.save(name, {**Machine.get_defaults(), "machine": name})


def comparable(results: Path, machine: str) -> tuple[str, str] | None:
    """Return the newest commit and the last commit before it with a case in common, or None.

    Only commits for which asv has results of this machine are considered.
    """
    files = (results / "asv" / machine).glob("*.json")
    known = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    *earlier, newest = sorted(
        (doc for doc in known if "commit_hash" in doc), key=lambda doc: doc["date"]
    )
    for before in reversed(earlier):
        if _measured(before) & _measured(newest):
            return before["commit_hash"], newest["commit_hash"]
    return None


def _measured(of_commit: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the benchmark and the case of each value that asv has for a commit."""
    rows = {
        name: dict(zip(of_commit["result_columns"], row, strict=False))
        for name, row in of_commit["results"].items()
    }
    return {
        (name, str(case))
        for name, row in rows.items()
        for case, value in zip(product(*row["params"]), row["result"] or (), strict=False)
        if value is not None
    }


def _history(asked: Asked) -> Answer:
    """Return the level shifts of the selected figures, which are judged together."""
    from harness.features.history import asv_page, night, trends, vouching
    from harness.features.history.report import history_page, rows

    args = asked.options
    if args.case == NODES:
        return _of_nodes(args.results)
    nights = night.nights(args.results)
    if not nights:
        raise RecordError(
            "the history is empty",
            where=str(args.results),
            expected="at least one run was added",
            fix=_first(args.results),
        )
    _check_figure(args.figure, list(night.QUANTITIES))
    judged = trends.trends(nights, args.case, args.figure)
    if not judged:
        cases = sorted({case for n in nights for case in n.cases})
        raise RecordError(
            f"no case with {args.case!r} in its name has a history",
            where=str(args.results),
            expected=", ".join(cases[:6]) + (", ..." if len(cases) > 6 else ""),
            fix="scaleproof history",
        )
    shown = rows.lines(
        nights,
        judged,
        text.columns(),
        every=bool(args.case or args.figure),
        asv=asv_page.found_by_asv(args.results),
    )
    if args.html is not None:
        history_page.write(args.html, args.results, nights, judged)
        shown += ["", f" page     {text.shown(args.html)}"]
    vouched = vouching.vouched(nights, args.results)
    shown += _unvouched(vouched, len(nights))
    worse = any(trend.status is trends.TrendStatus.REGRESSED for trend in judged)
    exit_ = Exit.FAILED if vouched.wrong or (worse and args.fail_on) else Exit.PASSED
    return Answer(document=_document(judged), lines=shown, exit=exit_)


def _of_nodes(results: Path) -> Answer:
    """Return the nodes that runs reported as slow or as the cause of failed launches."""
    from harness.analysis.reading import load
    from harness.features.history.offenders import records

    paths = sorted((results / "runs").glob("*/*/record.json"))
    if not paths:
        raise RecordError(
            "the folder contains no run",
            where=str(results / "runs"),
            expected="runs, each in the folder of its machine",
            fix="scaleproof network pairs --engine emulated --nodes 3x1",
        )
    every = records([load(path.parent) for path in paths])
    blamed = [node for node in every if node.named or node.broke]
    again = [node.node for node in every if node.again]
    head = f"{len(again)} of {len(every)} nodes were reported more often than chance explains"
    if not blamed:
        head = f"no node was reported in {len(paths)} runs"
    shown = [f" {head}{': ' + ', '.join(again) if again else ''}"]
    columns = [
        text.Column[NodeRecord]("node", 100, lambda record: record.node, left=True),
        text.Column("runs", 60, lambda r: str(r.runs)),
        text.Column("named slow", 90, lambda r: str(len(r.named))),
        text.Column("ended launches", 80, lambda r: str(len(r.broke))),
        text.Column("by chance", 50, lambda r: f"{r.chance:.2g}"),
        text.Column("last run", 40, lambda r: r.last, left=True),
        text.Column("", 70, lambda r: "not by chance" if r.again else "", left=True),
    ]
    if blamed:
        shown += ["", *text.table(columns, blamed, text.columns())]
    return Answer(document={"nodes": to_doc(tuple(every))}, lines=shown)


def _unvouched(vouched: VerifiedNights, num_nights: int) -> list[str]:
    """Return lines on nights that contradict their run, and on nights whose run is missing."""
    sentences = []
    for run, reason, folder in vouched.wrong:
        check = f"scaleproof verify {text.shown(folder)}"
        sentences += text.wrap(f" NOT VERIFIED: {run}: {reason}: {check}", text.columns(), 1)
    if vouched.num_gone:
        gone = f" noticed {vouched.num_gone} of {num_nights} nights cannot be verified, because"
        sentences += text.wrap(f"{gone} their runs are missing", text.columns(), 9)
    return ["", *sentences] if sentences else []


def _check_figure(name: str, known: Sequence[str]) -> None:
    if name and name not in known:
        raise RecordError(f"--figure {name}", expected=", ".join(known), fix="--figure step_time")


def _document(trends: Sequence[object]) -> dict[str, object]:
    """Return every series with its values, level shifts and status."""
    from harness.features.history.trends import Trend

    entries = []
    for trend in trends:
        assert isinstance(trend, Trend)
        series = trend.series
        entries.append(
            {
                "machine": series.machine,
                "case": series.case,
                "figure": series.quantity,
                "unit": series.kind.unit,
                "status": str(trend.status),
                "why": trend.why,
                "changes": to_doc(trend.turns),
                "nights": [
                    {"run": n.run, "started_at": n.started_at, **to_doc(v)}
                    for n, v in zip(series.nights, series.values, strict=True)
                ],
            }
        )
    return {"series": entries}
