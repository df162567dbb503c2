"""Use runs in a notebook: show a run as a table, plot it, compare it with another run.

    from harness import notebook
    run = notebook.read("results/samples/ddp-nano")
    run                                  # its headline and verdicts
    run.plot()                           # efficiency over ranks, with intervals and bounds
    run.compare("results/samples/ddp-nano-again")

Only plots need matplotlib, which the extra ``plot`` installs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from harness.analysis import compare, verify_cache
from harness.analysis.judging.points import points
from harness.analysis.results import Result, ranked, results
from harness.base.errors import SpecError
from harness.base.formatting import still
from harness.interface import frames
from harness.interface.report import figures
from harness.interface.report.headline import headline
from harness.record import RunRecord, Status

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The kinds of plots.
KINDS = ("scaling", "steps", "time")
#: A term is not drawn if it takes less than this share of a step in every case.
LEAST_SHARE = 0.002
#: Colours that are readable on light and dark backgrounds, the same as on the pages.
_COLORS = {Status.PASS: "#1a7f4b", Status.FAIL: "#c9372c", Status.ERROR: "#c9372c",
           Status.INCONCLUSIVE: "#a86400"}  # fmt: skip
_GREY = "#7a7f87"


def read(folder: Path | str) -> NotebookRun:
    """Return the run in a folder. RecordError explains why it cannot be read."""
    return NotebookRun(Path(folder))


class NotebookRun:
    """A run in a notebook.

    ``record`` is the whole record. ``doubt`` says why the record is not verified; it is empty if
    all figures follow from the samples.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.record: RunRecord
        self.record, self.doubt = verify_cache.vouched(folder)

    @property
    def results(self) -> list[ShownResult]:
        """Every result of the run, worst first."""
        every = ranked(self.record)
        return [ShownResult(result=result, doubt=self.doubt) for result in every]

    def result(self, case: str) -> ShownResult:
        """Return the worst result of the cases whose id contains a text; SpecError if none does."""
        fitting = [shown for shown in self.results if case in shown.result.case]
        if not fitting:
            known = dict.fromkeys(shown.result.case for shown in self.results)
            raise SpecError(
                f"no result has a case whose id contains {case!r}",
                where=str(self.folder),
                expected=", ".join(known) or "a run with results",
                fix=f"scaleproof report {self.folder} --every",
            )
        return fitting[0]

    @cached_property
    def launches(self) -> pd.DataFrame:
        return frames.launches(self.folder)

    @cached_property
    def steps(self) -> pd.DataFrame:
        return frames.steps(self.folder)

    @cached_property
    def points(self) -> pd.DataFrame:
        return frames.points(self.folder)

    @cached_property
    def budgets(self) -> pd.DataFrame:
        return frames.budgets(self.folder)

    def compare(self, other: NotebookRun | Path | str, metric: str = "step_s") -> ShownComparison:
        """Compare this run with a later one, case by case.

        Raises SpecError if the runs are not comparable.
        """
        later = other if isinstance(other, NotebookRun) else read(other)
        compared = compare.compare(self.record, later.record, metric)
        return ShownComparison(comparison=compared, doubts=(self.doubt, later.doubt))

    def plot(self, kind: str = "scaling") -> Plot:
        """Return a plot of one of the ``KINDS``.

        ``scaling`` shows efficiency over ranks, ``steps`` the step times of each case, and ``time``
        the parts of a profiled step. Raises SpecError if matplotlib is not installed.
        """
        if kind not in KINDS:
            raise SpecError(f"no plot {kind!r}", expected=", ".join(KINDS), fix='run.plot("steps")')
        figure = _figure()
        {"scaling": self._scaling, "steps": self._steps, "time": self._time}[kind](figure)
        if self.doubt:
            figure.suptitle("NOT VERIFIED", color=_COLORS[Status.ERROR], fontweight="bold")
        return Plot(figure=figure)

    def _scaling(self, figure: Figure) -> None:
        axes = figure.add_subplot(
            xlabel="ranks", ylabel="efficiency", title="efficiency, 95 % intervals, bounds"
        )
        worlds = set()
        for plan in self.record.plans:
            for against in dict.fromkeys(contrast.against for contrast in plan.contrasts):
                of_ladder = [
                    point for point in points(self.record, plan, against) if point.efficiency
                ]
                if not of_ladder:
                    continue
                x = [point.world_size for point in of_ladder]
                y = [point.efficiency for point in of_ladder]
                low = [
                    point.efficiency - (point.efficiency_low or point.efficiency)
                    for point in of_ladder
                ]
                high = [
                    (point.efficiency_high or point.efficiency) - point.efficiency
                    for point in of_ladder
                ]
                label = f"{plan.name} v {against}"
                axes.errorbar(x, y, yerr=(low, high), marker="o", capsize=3, label=label)
                worlds.update(x)
        for world, bound in self._bounds():
            axes.plot(world, bound, marker="_", markersize=22, markeredgewidth=2, color=_GREY)
        axes.axhline(1.0, color=_GREY, linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted(worlds))
        if worlds:
            axes.legend(fontsize=8)

    def _bounds(self) -> Iterator[tuple[int, float]]:
        """Yield each world size with the least efficiency that its threshold requires."""
        rules = {threshold.name: threshold.at_least for threshold in self.record.thresholds}
        worlds = {
            arm.case.hash: arm.case.world_size for plan in self.record.plans for arm in plan.arms
        }
        for result in results(self.record):
            bound = rules.get(result.rule or "")
            if result.metric == "efficiency" and bound is not None:
                yield worlds[result.case_hash], bound

    def _steps(self, figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="ms", title="steps of timed launches, slowest rank")
        timed = self.steps[self.steps.kept & (self.steps.purpose == "timed")]
        slowest = timed.groupby(["case", "launch", "step"]).step_s.max().mul(1e3)
        names = list(dict.fromkeys(timed.case))
        axes.boxplot(
            [slowest.loc[name] for name in names], orientation="horizontal", tick_labels=names
        )

    def _time(self, figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="ms", title="mean step of a profiled launch, by term")
        if self.budgets.empty:
            axes.text(0.5, 0.5, "no launch was profiled", ha="center", color=_GREY)
            return
        of_step = self.budgets.groupby(["case", "term"]).ns.sum()
        of_ranks = self.budgets.drop_duplicates(["case", "launch", "rank", "step"])
        parts = of_step.unstack().div(of_ranks.groupby("case").size(), axis=0).div(1e6)
        shown = parts.loc[:, parts.max() > LEAST_SHARE * parts.sum(axis=1).max()]
        left = shown.iloc[:, 0] * 0
        for term in shown.columns:
            axes.barh(shown.index, shown[term], left=left, label=term)
            left = left + shown[term]
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def _repr_html_(self) -> str:
        rows = [
            (r.status, r.case, figures.metric(r), figures.figure(r, ".4g") or "n/a", r.bound)
            for r in ranked(self.record)
        ]
        title = f"NOT VERIFIED: {self.doubt}" if self.doubt else headline(self.record)
        about = f"{self.record.run} · {self.record.machine.title} · {self.record.started_at[:16]}"
        header = ("status", "case", "metric", "value [95 %]", "bound")
        return _titled(title, about) + _table(header, rows)


@dataclass(frozen=True)
class Plot:
    """A matplotlib figure that a notebook draws without pyplot, which would keep it in memory."""

    figure: Figure

    def save(self, path: Path | str) -> None:
        """Write the figure in the format of the path's extension."""
        self.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.figure.savefig(image, format="png", dpi=110)
        return image.getvalue()


@dataclass(frozen=True)
class ShownResult:
    """A result with its display in a notebook."""

    result: Result
    doubt: str = ""

    def _repr_html_(self) -> str:
        result = self.result
        title = f"{result.status}: {result.case}" + (
            f" · NOT VERIFIED: {self.doubt}" if self.doubt else ""
        )
        rows = [
            ("metric", figures.metric(result)),
            ("value [95 %]", figures.figure(result, ".4g") or "n/a"),
            ("bound", f"{result.bound} ({result.rule or 'no threshold'})"),
            ("pairs of launches", str(result.n)),
            ("why", result.detail),
            *(("caveat", caveat.sentence) for caveat in result.caveats),
        ]
        return _titled(title, "") + _table((), rows)


@dataclass(frozen=True)
class ShownComparison:
    """A comparison of two runs with its display in a notebook."""

    comparison: compare.Comparison
    doubts: tuple[str, str] = ("", "")

    def _repr_html_(self) -> str:
        comparison = self.comparison
        rows = [
            (
                row.case.id,
                _plain(row.a),
                _plain(row.b),
                _ends(row.ratio, row.low, row.high),
                str(row.reading),
            )
            for row in comparison.rows
        ]
        mean = (
            "no case in common"
            if comparison.mean is None
            else _ends(comparison.mean, comparison.mean_low, comparison.mean_high)
        )
        doubt = "".join(f" NOT VERIFIED: {d}." for d in self.doubts if d)
        about = "; ".join([*comparison.forced, *comparison.differs, *comparison.not_compared])
        title = f"{comparison.metric}, B over A: {mean}.{doubt}"
        return _titled(title, about) + _table(("case", "A", "B", "B/A [95 %]", "reading"), rows)


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _ends(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3f} [{'n/a' if low is None or high is None else f'{low:.3f}, {high:.3f}'}]"


def _titled(title: str, about: str) -> Markup:
    """Return a sentence in the colour of its first word, and a smaller line below it."""
    word = title.partition(":")[0].partition(" ")[0]
    color = next((c for status, c in _COLORS.items() if status == word), "inherit")
    color = _COLORS[Status.ERROR] if word == "NOT" else color
    head = Markup('<p style="font-weight:600;color:{};margin:.4em 0">{}</p>')
    small = Markup('<p style="color:{};font-size:.85em;margin:.2em 0">{}</p>')
    return head.format(color, still(title)) + (small.format(_GREY, still(about)) if about else "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return plain rows, because a notebook has its own style; only a status has a colour."""
    cell = Markup('<td style="text-align:left{}">{}</td>')
    lines = [
        Markup("").join(
            cell.format(
                f";font-weight:700;color:{_COLORS[Status(text)]}" if text in _COLORS else "",
                still(text),
            )
            for text in row
        )
        for row in rows
    ]
    head = Markup("").join(
        Markup('<th style="text-align:left">{}</th>').format(digest) for digest in header
    )
    body = Markup("").join(Markup("<tr>{}</tr>").format(line) for line in lines)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecError(
            "plots need the package matplotlib, which is not installed",
            expected="matplotlib in this environment",
            fix="pip install 'scaleproof[plot]'",
        ) from error
    return Figure(figsize=(7, 3.6), layout="constrained")
