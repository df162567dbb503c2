"""The verb ``timeline``: the budget of any profiler's traces, or of a run's profiled launches."""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.judging.doubts import PERTURBED
from harness.analysis.timeline.views import merge
from harness.analysis.timeline.close import Closed, close
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.profiled import close_launch
from harness.analysis.timeline.reader import Trace, read, split
from harness.analysis.timeline.sorting import lanes
from harness.analysis.timeline.views.tallies import operators, ranges
from harness.base.documents import Json, to_doc
from harness.base.errors import ScaleproofError
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text, timeline as pages
from harness.record import Budget, LaunchRecord, Purpose
from harness.record.store import load

HELP = dict(timeline="show where the time of a step went, from torch.profiler traces")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The traces of one window, their lanes and what these come to."""

    traces: Sequence[Trace]
    lanes: Sequence[Lanes]
    closed: Closed
    readings: Sequence[Json] = ()


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One profiled window: its budget, and its traces where more is asked of them.

    ``doubt`` says why a report attributes nothing to it.
    """

    title: str
    name: str
    budget: Budget
    open: Callable[[], Opened]
    doubt: str = ""


def add_to(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="a run's folder, or torch.profiler Chrome traces of one window, one for each rank",
    )  # fmt: skip
    parser.add_argument(
        "--merge", type=Path, metavar="DIR",
        help="write one trace of all ranks on one clock, with the budget as tracks, for Perfetto",
    )  # fmt: skip
    parser.add_argument(
        "--ranges", action="store_true", help="also list the named ranges (NVTX, annotations)"
    )


def act(asked: Asked) -> Answer:
    """Every window: its budget, and its ranges or its merged trace where these are asked for."""
    parsed, width = asked.options, text.columns()
    documents: list[Json] = []
    lines: list[str] = []
    for window in _windows(parsed.paths):
        document = {"title": window.title, "budget": to_doc(window.budget), "doubt": window.doubt}
        lines += pages.window_lines(window.title, window.budget, width)
        lines += text.wrap(f" refused  {window.doubt}", width, 10) if window.doubt else []
        if parsed.ranges:
            named_ranges = ranges(window.open().traces)
            document["ranges"] = to_doc(tuple(named_ranges))
            lines += ["", *pages.range_lines(named_ranges, width)]
        if parsed.merge is not None:
            path, w = parsed.merge / f"{window.name}.trace.json.gz", window.open()
            merge.write(path, w.traces, w.lanes, w.closed, w.readings)
            lines.append(f" merged   {path}: open it in https://ui.perfetto.dev")
        documents.append(document)
        lines.append("")
    return Answer(document=documents, lines=lines[:-1])


def _windows(paths: Sequence[Path]) -> Iterator[Traced]:
    if len(paths) == 1 and (paths[0].is_dir() or paths[0].name == "record.json"):
        yield from _of_run(paths[0])
    else:
        yield _of_traces(paths)


def _of_traces(paths: Sequence[Path]) -> Traced:
    """Traces of one window, in any order.

    Ranks that do not say their number have it from their file's name, or else by their order.
    """
    paths = sorted(paths, key=_by_number) if len(paths) > 1 else paths
    traces = [part if part.rank >= 0 else _named(part) for p in paths for part in split(read(p))]
    stated = [t.rank for t in traces]
    if len(set(stated)) < len(stated) and max(stated) >= 0:
        raise ScaleproofError(
            f"the traces belong to ranks {stated}: a rank appears twice",
            expected="one trace for each rank, all from one window",
            fix=f"scaleproof timeline {paths[0]}",
        )
    rank_lanes = [lanes(t, i) for i, t in enumerate(traces)]
    order = sorted(range(len(rank_lanes)), key=lambda i: rank_lanes[i].rank)
    rank_lanes, traces = [rank_lanes[i] for i in order], [traces[i] for i in order]
    closed = close(rank_lanes)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Traced(
        title=f"{paths[0].name}{more}",
        name=f"merged-{paths[0].name.split('.')[0]}",
        budget=replace(closed.budget, operators=operators(traces, rank_lanes, closed.budget.steps)),
        open=lambda: Opened(traces=traces, lanes=rank_lanes, closed=closed),
    )


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Rank 10 comes after rank 9."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.name)]


def _named(trace: Trace) -> Trace:
    """A trace that does not say its rank, with that of its file's name, and a note of it."""
    found = re.findall(r"rank[-_]?(\d+)", Path(trace.path).name)
    by = "its file's name" if found else "the order of the files"
    rank = int(found[-1]) if found else -1
    return replace(trace, rank=rank, notes=(*trace.notes, f"its rank is from {by}"))


def _of_run(path: Path) -> Iterator[Traced]:
    """The profiled launches of a run, as its record holds them."""
    run = load(path)
    folder = path if path.is_dir() else path.parent
    plans = {p.hash: p for p in run.plans}
    profiled = [x for x in run.launches if x.purpose is Purpose.PROFILE and x.budget is not None]
    if not profiled:
        raise ScaleproofError(
            "no profiled launch in this run",
            where=str(path),
            expected="a run without --no-timeline",
            fix="scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    for launch in profiled:
        assert launch.budget is not None

        def opened(launch: LaunchRecord = launch) -> Opened:
            traces, rank_lanes, closed = close_launch(folder, launch.launch, launch.ranks)
            devices = folder / "launches" / launch.launch / "gpus.json"
            readings = json.loads(devices.read_text()) if devices.is_file() else ()
            return Opened(traces=traces, lanes=rank_lanes, closed=closed, readings=readings)

        changed = launch.perturbation or 0.0
        yield Traced(
            title=plans[launch.plan].arm(launch.arm).case.id,
            name=launch.launch,
            budget=launch.budget,
            open=opened,
            doubt=_doubt(changed) if changed > PERTURBED else "",
        )


def _doubt(changed: float) -> str:
    """Why a report says nothing of such a window."""
    return (
        f"profiled steps take {changed:.2f}x as long as unprofiled ones (limit {PERTURBED}):"
        " a report attributes nothing to these figures"
    )
