"""The verb ``timeline``: the budget of any profiler's traces, or of a run's profiled launches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.budget import Budget
from harness.codec import Json, to_doc
from harness.errors import ScaleproofError
from harness.record import Purpose, load
from harness.report import timeline as pages
from harness.timeline import merge
from harness.timeline.close import Closed, close
from harness.timeline.lanes import Lanes, lanes
from harness.timeline.launch import close_launch
from harness.timeline.reader import Trace, read, split
from harness.timeline.tallies import operators, ranges


@dataclass(frozen=True, kw_only=True)
class Window:
    """One profiled window: its traces and what they come to."""

    title: str
    name: str
    traces: Sequence[Trace]
    lanes: Sequence[Lanes]
    closed: Closed
    readings: Sequence[Json] = ()

    @property
    def budget(self) -> Budget:
        """With the operators that took longest."""
        found = self.closed.budget
        return replace(found, operators=operators(self.traces, found.steps))


def add_to(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
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


def act(parsed: argparse.Namespace, width: int) -> tuple[Json, list[str]]:
    """The document and the lines of the verb."""
    documents: list[Json] = []
    lines: list[str] = []
    for window in _windows(parsed.paths):
        budget = window.budget
        document = {"title": window.title, "budget": to_doc(budget)}
        lines += pages.window_lines(window.title, budget, width)
        if parsed.ranges:
            found = ranges(window.traces)
            document["ranges"] = to_doc(tuple(found))
            lines += ["", *pages.range_lines(found, width)]
        if parsed.merge is not None:
            path = parsed.merge / f"{window.name}.trace.json.gz"
            merge.write(path, window.traces, window.lanes, window.closed, window.readings)
            lines.append(f" merged   {path}: open it in https://ui.perfetto.dev")
        documents.append(document)
        lines.append("")
    return documents, lines[:-1]


def _windows(paths: Sequence[Path]) -> Iterator[Window]:
    if len(paths) == 1 and (paths[0].is_dir() or paths[0].name == "record.json"):
        yield from _of_run(paths[0])
        return
    traces = [part for p in paths for part in split(read(p))]
    stated = [t.rank for t in traces]
    known = len(set(stated)) == len(stated) and min(stated) >= 0
    if not known and len(traces) > 1 and max(stated) >= 0:
        raise ScaleproofError(
            f"these traces are of ranks {stated}",
            expected="one trace of each rank, of one window",
            fix=f"scaleproof timeline {paths[0]}",
        )
    found = [lanes(t, i) for i, t in enumerate(traces)]
    order = sorted(range(len(found)), key=lambda i: found[i].rank)
    found, traces = [found[i] for i in order], [traces[i] for i in order]
    title = paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more"
    name = paths[0].name.split(".")[0]
    yield Window(
        title=title, name=f"merged-{name}", traces=traces, lanes=found, closed=close(found)
    )


def _of_run(path: Path) -> Iterator[Window]:
    run = load(path)
    folder = path if path.is_dir() else path.parent
    own = [x for x in run.launches if x.purpose is Purpose.PROFILE and x.budget is not None]
    if not own:
        raise ScaleproofError(
            "no profiled launch in this run",
            where=str(path),
            expected="a run without --no-timeline",
            fix="scaleproof run ddp/decoder-tiny/weak --cpus 2",
        )
    plans = {p.hash: p for p in run.plans}
    for launch in own:
        traces, closed = close_launch(folder, launch.launch, launch.ranks)
        found = [lanes(t, r.rank) for t, r in zip(traces, launch.ranks, strict=True)]
        yield Window(
            title=plans[launch.plan].arm(launch.arm).case.id,
            name=launch.launch,
            traces=traces,
            lanes=found,
            closed=closed,
            readings=_readings(folder / "launches" / launch.launch / "gpus.json"),
        )


def _readings(path: Path) -> list[Json]:
    """Of the devices, where there are any."""
    return list(json.loads(path.read_text())) if path.is_file() else []
