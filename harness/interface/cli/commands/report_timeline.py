"""The command ``report timeline``: time budgets of profiler traces or of a run."""

import argparse
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from harness.analysis.judging.caveats import PERTURBED
from harness.analysis.reading import load
from harness.analysis.timeline import inspector, merge, views
from harness.analysis.timeline.close import close, trace_path
from harness.analysis.timeline.inspector import Inspected
from harness.analysis.timeline.reader import Trace, read, split
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.tallies import Range, operators, ranges
from harness.analysis.timeline.views import (
    Communication,
    Idleness,
    Kernel,
    ShownBudget,
    TermChange,
    communications,
    idleness,
    kernels,
    shown,
)
from harness.base.documents import Json, to_doc
from harness.base.errors import ScaleproofError
from harness.base.packs import is_there
from harness.interface.cli.answer import Answer, Asked, vouched
from harness.interface.report import text, windows as pages
from harness.record import Budget, LaunchRecord, Operator, Purpose

#: Name of the merged trace with all cases of a run.
ALL = "all.trace.json.gz"
HELP = {
    "report timeline": "show where the time of a step went, from torch.profiler traces",
}
EXAMPLES = {
    "report timeline": (
        "report timeline RUN --details",
        "report timeline rank0.json rank1.json --merge merged",
    ),
}


class ShownWindow(TypedDict):
    title: str
    budget: Budget
    doubt: str
    communications: NotRequired[Sequence[Communication]]
    kernels: NotRequired[Sequence[Kernel]]
    idleness: NotRequired[Sequence[Idleness]]
    ranges: NotRequired[Sequence[Range]]


class Windows(TypedDict):
    windows: Sequence[ShownWindow]


class Shifted(TypedDict):
    title: str
    terms: Sequence[TermChange]
    names: Sequence[TermChange]
    doubts: Sequence[str]


class Shifts(TypedDict):
    windows: Sequence[Shifted]


class InspectedJob(TypedDict):
    inspected: Inspected


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "report timeline": (Windows, Shifts, InspectedJob),
}


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One profiled window with its time budget.

    ``open`` reads the traces of the window, for tables that need more than the budget. ``doubt``
    says why reports draw no conclusions from the window; it is empty if they do.
    """

    title: str
    name: str
    budget: Budget
    open: Callable[[], ShownBudget]
    doubt: str = ""


def add_to(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a run's folder, or torch.profiler Chrome traces of one window, one for each rank, or"
        " the files of NCCL Inspector",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        type=Path,
        metavar="PATH",
        default=(),
        help="a second window or run: show the changes in it by term and by kernel",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="also show each term's kernels with the operators that launched them, the host's work"
        " while the device waited, and each communication's late rank and bandwidth",
    )
    parser.add_argument(
        "--ranges", action="store_true", help="also list the named ranges (NVTX, annotations)"
    )
    parser.add_argument(
        "--step-name",
        metavar="NAME",
        help="the annotation of a step in traces without a ProfilerStep; * matches anything",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="DIR",
        help="write one trace of all ranks on one clock, with the budget as tracks, for Perfetto",
    )


def act(asked: Asked) -> Answer:
    """Return the budget of every window and the further tables that the options select."""
    parsed = asked.options
    width = text.columns()
    documents: list[Json] = []
    lines: list[str] = []
    if inspector.is_inspected(parsed.paths[0]):
        inspected = inspector.read(parsed.paths)
        document = {"inspected": to_doc(inspected)}
        return Answer(document=document, lines=pages.inspected_lines(inspected, width))
    windows = list(_windows(parsed.paths, parsed.step_name))
    runs = [(load(p), p) for p in (*parsed.paths, *parsed.against) if _is_run(p)]
    if parsed.against:
        after = list(_windows(parsed.against, parsed.step_name))
        return vouched(_difference(windows, after, width), runs)
    for window in windows:
        document = {"title": window.title, "budget": to_doc(window.budget), "doubt": window.doubt}
        lines += pages.window_lines(window.title, window.budget, width)
        lines += text.wrap(f" refused  {window.doubt}", width, 10) if window.doubt else []
        for part, more in _more(window, parsed, width):
            document |= part
            lines += ["", *more] if more else []
        if parsed.merge is not None:
            path = parsed.merge / f"{window.name}.trace.json.gz"
            merge.write(path, {window.title: window.open})
            lines += text.wrap(f" merged   {path}", width, 10)
        documents.append(document)
        lines.append("")
    lines += [*pages.legend_lines(lines, width), ""]
    if parsed.merge is not None and len(windows) > 1:
        path = parsed.merge / ALL
        merge.write(path, {traced.title: traced.open for traced in windows})
        lines += [*text.wrap(f" merged   {path}: all cases", width, 10), ""]
    if parsed.merge is not None:
        lines += [" open     https://ui.perfetto.dev shows merged traces", ""]
    return vouched(Answer(document={"windows": documents}, lines=lines[:-1]), runs)


def _more(
    window: Traced, parsed: argparse.Namespace, width: int
) -> Iterator[tuple[dict[str, Json], list[str]]]:
    """Yield the further tables that the options select, each as a document and as lines."""
    if parsed.details:
        opened = window.open()
        operations = communications(opened)
        of_terms = kernels(opened)
        causes = idleness(opened)
        yield {"communications": to_doc(operations)}, pages.communication_lines(operations, width)
        yield {"kernels": to_doc(of_terms)}, pages.kernel_lines(of_terms, width)
        yield {"idleness": to_doc(causes)}, pages.idleness_lines(causes, width)
    if parsed.ranges:
        named_ranges = ranges(window.open().traces)
        yield {"ranges": to_doc(tuple(named_ranges))}, pages.range_lines(named_ranges, width)


def _difference(before: Sequence[Traced], after: Sequence[Traced], width: int) -> Answer:
    """Compare windows with the same title, or two single windows whatever their titles."""
    alone = len(before) == len(after) == 1
    pairs = [(traced, b) for traced in before for b in after if alone or traced.title == b.title]
    if not pairs:
        raise ScaleproofError(
            "the two sides have no window in common",
            expected=f"one of {', '.join(traced.title for traced in before)}",
            fix="scaleproof report timeline B",
        )
    documents: list[Json] = []
    lines: list[str] = []
    for a, b in pairs:
        terms = views.terms(a.budget, b.budget)
        was, whole = _everything(a)
        now, also = _everything(b)
        names = views.names(was, now, whole and also)
        title = a.title if a.title == b.title else f"{b.title} against {a.title}"
        doubts = [
            f"{side}: {traced.doubt}" for side, traced in (("A", a), ("B", b)) if traced.doubt
        ]
        documents.append(
            {
                "title": title,
                "terms": to_doc(terms),
                "names": to_doc(names),
                "doubts": doubts,
            }
        )
        lines += pages.difference_lines(title, terms, names, width)
        for doubt in doubts:
            lines += text.wrap(f" refused  {doubt}", width, 10)
        lines.append("")
    return Answer(document={"windows": documents}, lines=lines[:-1])


def _everything(window: Traced) -> tuple[tuple[Operator, ...], bool]:
    """Return the operators of a window, and whether the list is complete.

    Without the traces only the operators of the record are known.
    """
    try:
        opened = window.open()
    except ScaleproofError:
        return window.budget.operators, False
    return operators(opened.traces, opened.lanes, window.budget.steps, most=None), True


def _windows(paths: Sequence[Path], step_name: str | None) -> Iterator[Traced]:
    if len(paths) == 1 and _is_run(paths[0]):
        yield from _of_run(paths[0])
    else:
        yield _of_traces(paths, step_name)


def _is_run(path: Path) -> bool:
    return path.is_dir() or path.name == "record.json"


def _of_traces(paths: Sequence[Path], step_name: str | None) -> Traced:
    """Return the window of these traces, which may be in any order.

    A trace that does not state its rank takes it from its file name, or else from the order.
    """
    paths = sorted(paths, key=_by_number) if len(paths) > 1 else paths
    traces = [
        part if part.rank >= 0 or len(paths) == 1 else _named(part)
        for path in paths
        for part in split(read(path))
    ]
    stated = [trace.rank for trace in traces]
    if len(set(stated)) < len(stated) and max(stated) >= 0:
        raise ScaleproofError(
            f"the traces belong to ranks {stated}: a rank appears twice",
            expected="one trace for each rank, all from one window",
            fix=f"scaleproof report timeline {paths[0]}",
        )
    rank_lanes = [sorted_lanes(trace, i, step_name) for i, trace in enumerate(traces)]
    order = sorted(range(len(rank_lanes)), key=lambda i: rank_lanes[i].rank)
    rank_lanes, traces = [rank_lanes[i] for i in order], [traces[i] for i in order]
    closed = close(rank_lanes)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Traced(
        title=f"{paths[0].name}{more}",
        name=f"merged-{paths[0].name.split('.')[0]}",
        budget=replace(closed.budget, operators=operators(traces, rank_lanes, closed.budget.steps)),
        open=lambda: ShownBudget(traces=traces, lanes=rank_lanes, closed=closed),
    )


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a sort key of a file name that puts rank 10 after rank 9."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.name)]


def _named(trace: Trace) -> Trace:
    """Return a trace with the rank from its file name, and a note on where the rank is from."""
    numbers = re.findall(r"rank[-_]?(\d+)", Path(trace.path).name)
    by = "its file's name" if numbers else "the order of the files"
    rank = int(numbers[-1]) if numbers else -1
    return replace(trace, rank=rank, notes=(*trace.notes, f"its rank is from {by}"))


def _profiling(argv: Sequence[str]) -> list[str]:
    """Return a command without the options that keep a run from profiling its launches."""
    words = list(itertools.takewhile(lambda word: word != "--", argv))
    rest = argv[len(words) :]
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in ("--no-timeline", "--check-only", "--time-budget")
        and before != "--time-budget"
        and not word.startswith("--time-budget=")
    ]
    return [*kept, *rest]


def _of_run(path: Path) -> Iterator[Traced]:
    """Yield the profiled launches of a run, with the budgets of its record."""
    run = load(path)
    folder = path if path.is_dir() else path.parent
    plans = {plan.hash: plan for plan in run.plans}
    profiled = [x for x in run.launches if x.purpose is Purpose.PROFILE and x.budget is not None]
    if not profiled:
        raise ScaleproofError(
            "this run has no profiled launch",
            where=str(path),
            expected="a run without --no-timeline and with enough time for profiling",
            fix=shlex.join(_profiling(run.settings.argv))
            or "scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    for launch in profiled:
        assert launch.budget is not None

        def opened(launch: LaunchRecord = launch) -> ShownBudget:
            _there(folder, launch)
            return shown(folder, launch)

        changed = launch.changed
        yield Traced(
            title=plans[launch.plan].arm(launch.arm).case.id,
            name=_file(plans[launch.plan].arm(launch.arm).case.id, launch.launch),
            budget=launch.budget,
            open=opened,
            doubt=_doubt(changed) if changed > PERTURBED else "",
        )


def _file(case: str, launch: str) -> str:
    """Return the name of a case's trace file: the case and the number of its launch."""
    return f"{re.sub(r'[^A-Za-z0-9@+=.-]+', '-', case)}-{launch.rpartition('-')[2]}"


def _there(folder: Path, launch: LaunchRecord) -> None:
    """Raise ScaleproofError if the launch's traces are missing, as for a copied record."""
    if not any(is_there(trace_path(folder, launch.launch, rank.rank)) for rank in launch.ranks):
        raise ScaleproofError(
            "the traces of this launch are missing",
            where=str(folder / "launches" / launch.launch),
            expected="the complete folder of the run; a record alone contains only budgets",
            fix=f"scaleproof report timeline {folder}",
        )


def _doubt(changed: float) -> str:
    """Return why reports draw no conclusions from a profile: its steps take ``changed`` times as
    long as unprofiled ones.
    """
    return (
        f"profiled steps take {changed:.2f}x as long as unprofiled ones (limit {PERTURBED}):"
        " a report attributes nothing to these figures"
    )
