"""Draw the samples and traces of a case: step times, memory, ranks, one step of all ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from harness.analysis.timeline.close import close_launch, trace_path
from harness.base.errors import ScaleproofError
from harness.base.formatting import si
from harness.base.packs import size
from harness.cases import Plan
from harness.interface.report.page import drawings, svg
from harness.interface.report.page.drawings import Lane, Spread, StepSeriesChart
from harness.interface.report.page.spent import COLORS
from harness.interface.report.timeline import TERMS
from harness.record import LaunchRecord, Purpose, RunRecord
from harness.record.store import Samples, load_samples

#: The title of the drawing of one step.
ONE_STEP = "One step of all ranks"
#: The largest numbers of launches and of ranks that are drawn. The tables list all of them.
LAUNCHES = 12
RANKS = 16
#: The number of pieces in the drawing of a step. Shorter spans are not visible.
PIECES = 400
#: The largest trace of which a step is drawn, in bytes: all ranks together, compressed. Larger
#: traces would make the page slow to write.
TRACE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A drawing with its title and a note."""

    title: str
    svg: Markup
    note: str = ""


def figures(
    run: RunRecord, folder: Path, plan: Plan, launches: Sequence[LaunchRecord]
) -> Iterator[Drawing]:
    """Yield the drawings from the files of these launches.

    Launches whose files are missing are skipped.
    """
    timed = [
        launch
        for launch in launches
        if launch.purpose is Purpose.TIMED and launch.steps is not None
    ]
    read = [
        (launch, samples) for launch in timed[:LAUNCHES] if (samples := _samples(folder, launch))
    ]
    if read:
        yield from _over_steps(run, plan, read)
        yield _spreads(read)
    profiled = next((launch for launch in launches if launch.budget is not None), None)
    if profiled is not None and (figure := _one_step(folder, profiled)):
        yield figure


def _samples(folder: Path, launch: LaunchRecord) -> list[Samples]:
    try:
        return [load_samples(folder, launch.launch, rank) for rank in launch.ranks]
    except ScaleproofError:
        return []


def _over_steps(
    run: RunRecord, plan: Plan, read: Sequence[tuple[LaunchRecord, Sequence[Samples]]]
) -> Iterator[Drawing]:
    cut = run.window(plan, read[0][0]).cut
    steps, memory = [], []
    for launch, ranks in read:
        name = f"launch {launch.launch.rpartition('-')[2]}, block {launch.block}"
        count = min(len(rank.step_s) for rank in ranks)
        slowest = np.max([rank.step_s[:count] for rank in ranks], axis=0)
        steps.append(StepSeriesChart(name=name, values=(slowest * 1e3).tolist()))
        memory_bytes = np.max([rank.rss_bytes[:count] for rank in ranks], axis=0)
        looked = np.flatnonzero(memory_bytes)
        if len(looked) > 1:
            values = (memory_bytes[looked] / 1e6).tolist()
            memory.append(StepSeriesChart(name=name, values=values, steps=looked.tolist()))
    message = f"{len(steps)} launches; each step time is that of the slowest rank"
    drawn = drawings.over_steps(steps, title="step time", unit="ms", cut=cut)
    yield Drawing(title="Every step", svg=Markup(drawn), note=message)
    if memory:
        drawn = drawings.over_steps(memory, title="resident memory", unit="MB", cut=cut)
        yield Drawing(title="Memory", svg=Markup(drawn), note="of the largest rank's process")


def _spreads(read: Sequence[tuple[LaunchRecord, Sequence[Samples]]]) -> Drawing:
    """Return the distribution of each rank's step times, over the timed steps of all launches."""
    times_ms: dict[int, list[float]] = {}
    for launch, ranks in read:
        num_kept = launch.steps.count if launch.steps else 0
        for rank, samples in zip(launch.ranks, ranks, strict=True):
            kept = samples.step_s[-num_kept:] * 1e3
            times_ms.setdefault(rank.rank, []).extend(kept.tolist())
    slowest = sorted(times_ms, key=lambda rank: -float(np.mean(times_ms[rank])))[:RANKS]
    rows = [Spread(name=f"rank {rank}", values=times_ms[rank]) for rank in sorted(slowest)]
    drawn = drawings.spreads(rows, title="step time", unit="ms")
    which = f"; the {RANKS} slowest of {len(times_ms)} ranks" if len(times_ms) > RANKS else ""
    note = f"line: 5 to 95 %, bar: quartiles, mark: median, dot: worst step{which}"
    return Drawing(title="Step times of each rank", svg=Markup(drawn), note=note)


def _one_step(folder: Path, launch: LaunchRecord) -> Drawing | None:
    """Return a drawing of the step with the median length, all ranks on one clock."""
    shown = _shown_ranks(launch)
    paths = [trace_path(folder, launch.launch, r.rank) for r in launch.ranks]
    try:
        if sum(map(size, paths)) > TRACE_BYTES:
            note = "the traces are too large to draw here: scaleproof report timeline RUN"
            return Drawing(title=ONE_STEP, svg=Markup(""), note=note)
        _, lanes, closed = close_launch(folder, launch.launch, launch.ranks)
    except (OSError, ScaleproofError):
        return None
    lengths = np.array([budget.step_ns for budget in closed.budget.ranks]).max(axis=0)
    step = int(np.argsort(lengths)[len(lengths) // 2])
    edges = {
        lane.rank: lane.edges[step : step + 2] + closed.offsets_ns.get(lane.rank, 0)
        for lane in lanes
    }
    begin = min(int(edge[0]) for edge in edges.values())
    timelines = []
    for rank in shown:
        low, high = (int(e) for e in edges[rank])
        tracks = {TERMS[term]: spans for term, spans in closed.tracks[rank].items()}
        timelines.append(Lane(name=f"rank {rank}", parts=list(_pieces(tracks, low, high, begin))))
    note = f"step {step} of {closed.budget.steps}, profiled"
    note += (
        "" if len(shown) == len(launch.ranks) else f"; {len(shown)} of {len(launch.ranks)} ranks"
    )
    drawn = drawings.lanes(timelines, COLORS, unit="ms")
    return Drawing(title=ONE_STEP, svg=Markup(drawn), note=note)


def _shown_ranks(launch: LaunchRecord) -> list[int]:
    """Return the ranks to draw.

    If there are many, they are the first, the last, and the rank that caused most waiting.
    """
    ranks = [rank.rank for rank in launch.ranks]
    if len(ranks) <= RANKS:
        return ranks
    blame = launch.budget.blame if launch.budget else None
    late = [] if blame is None else [blame.rank]
    return sorted({*ranks[: RANKS // 2], *ranks[1 - RANKS // 2 :], *late})


def _pieces(
    tracks: dict[str, np.ndarray], low: int, high: int, begin: int
) -> Iterator[tuple[str, float, float]]:
    """Yield (term, start, end) in ms since ``begin``.

    Divide the step into ``PIECES`` pieces and take the term that fills most of each piece.
    """
    size = max((high - low) / PIECES, 1.0)
    edges = low + size * np.arange(PIECES + 1)
    names = list(tracks)
    occupied = np.zeros((len(names), PIECES))
    for i, name in enumerate(names):
        ends = tracks[name].astype(float)
        if len(ends):
            # Subtract cumulated times at the edges, because a loop over 10^6 kernels would be slow.
            before = np.concatenate(([0.0], np.cumsum(ends[:, 1] - ends[:, 0])))
            at = np.searchsorted(ends[:, 0], edges, side="right")
            over = np.where(at > 0, np.maximum(ends[np.maximum(at - 1, 0), 1] - edges, 0), 0.0)
            occupied[i] = np.diff(before[at] - over)
    largest = occupied.argmax(axis=0)
    starts = np.flatnonzero(np.concatenate(([True], largest[1:] != largest[:-1])))
    for a, b in zip(starts, [*starts[1:], PIECES], strict=True):
        if occupied[largest[a], a:b].any():
            yield names[largest[a]], (edges[a] - begin) / 1e6, (edges[b] - begin) / 1e6


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank over the timed launches of a case; ``strip`` shows its mean step in each launch."""

    name: str
    host: str
    device: str
    step_ms: float
    strip: Markup
    cores: float
    peak: str


def ranks(folder: Path, launches: Sequence[LaunchRecord]) -> list[RankRow]:
    """Return a row for each rank with its mean step in every launch, on one scale.

    If there are more than ``RANKS``, return the slowest ranks. Return no rows if there is only one
    rank, or if the samples are missing.
    """
    timed = [x for x in launches if x.purpose is Purpose.TIMED and x.steps is not None]
    seen = [(x, samples) for x in timed[:LAUNCHES] if (samples := _samples(folder, x))]
    if not seen or len(seen[0][0].ranks) < 2:
        return []
    means: dict[int, list[float]] = {}
    for launch, samples in seen:
        num_kept = launch.steps.count if launch.steps else 0
        for rank, of_rank_samples in zip(launch.ranks, samples, strict=True):
            means.setdefault(rank.rank, []).append(
                float(of_rank_samples.step_s[-num_kept:].mean()) * 1e3
            )
    all_means = [v for values in means.values() for v in values]
    shown = sorted(means, key=lambda r: -sum(means[r]) / len(means[r]))[:RANKS]
    rows = []
    for number in sorted(shown):
        of_rank = [r for x, _ in seen for r in x.ranks if r.rank == number]
        peaks = [r.peak_bytes for r in of_rank if r.peak_bytes is not None]
        strip = svg.strip(means[number], None, None, (), (min(all_means), max(all_means)))
        rows.append(
            RankRow(
                name=f"rank {number}",
                host=of_rank[0].host,
                device=of_rank[0].device,
                step_ms=sum(means[number]) / len(means[number]),
                strip=Markup(strip),
                cores=sum(r.cpu_s / r.window_s for r in of_rank if r.window_s) / len(of_rank),
                peak=si(float(max(peaks)), "B") if peaks else "n/a",
            )
        )
    return rows
