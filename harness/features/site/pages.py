"""Write the pages of a site: runs, cases over time, machines, nightly runs, contracts.

Each page is one file that needs no server and no network. It contains the data for its search.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from harness.analysis.reading import load
from harness.base import files
from harness.base.formatting import rate
from harness.features.site.chart import ChartPoint, chart
from harness.features.site.entries import CaseFigure, RuleFigure, SiteEntry, on_all_cores
from harness.interface.report.page.page import render
from harness.interface.report.templates import templates
from harness.record import Status
from harness.record.outcome import SEVERITY
from harness.record.store import write_text

HERE = Path(__file__).parent
#: The files of the pages and their titles.
PAGES = {
    "index.html": "Runs",
    "cases.html": "Cases over time",
    "machines.html": "Machines",
    "nights.html": "Nights",
    "contracts.html": "Contracts",
}
#: The largest number of days in the table of nights.
MOST_DAYS = 45
#: Names of the pages about several runs that other commands write below the results.
BESIDE = ("history.html", "handover.html", "machines.html")
#: One letter per status, so that the colour of a cell does not carry information alone.
LETTERS = {
    Status.PASS: "P", Status.FAIL: "F", Status.INCONCLUSIVE: "?", Status.ERROR: "E",
    Status.RECORDED: "·", Status.SKIP: "-", Status.NOT_COMPARABLE: "n",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A case in a run, with the run's entry and the case's figure."""

    entry: SiteEntry
    figure: CaseFigure

    @property
    def link(self) -> str:
        return link(self.entry)

    @property
    def text(self) -> str:
        """The result in words, such as ``0.82 [0.78, 0.86] · PASS · 2026-11-25 02:05``."""
        figure = self.figure
        throughput = f"{rate(figure.throughput)} samples/s"
        parts = (figure.text, throughput, str(figure.status), self.entry.at)
        return " · ".join(filter(None, parts))


def link(entry: SiteEntry) -> str:
    """Return the address of a run's page, relative to the site."""
    return f"{quote(entry.place)}/report.html"


def write(
    results: Path, entries: Sequence[SiteEntry], unreadable: Sequence[str], to: Path, name: str
) -> list[Path]:
    """Write all pages except the pages of single runs.

    Pages about several runs that other commands wrote below the results are copied to the site.
    """
    documents = _documents(results, to)
    environment = templates(HERE / "templates")
    common = {
        "name": name,
        "pages": PAGES,
        "entries": entries,
        "unreadable": unreadable,
        "documents": documents,
        "letters": LETTERS,
        "link": link,
    }
    sections: dict[str, Callable[[], dict[str, object]]] = {
        "index.html": lambda: {"counts": counts(entries), "machines": titles(entries)},
        "cases.html": lambda: {"groups": over_time(entries)},
        "machines.html": lambda: side_by_side(entries),
        "nights.html": lambda: nights(entries),
        "contracts.html": lambda: {"rules": contracts(entries)},
    }
    out = []
    for file, title in PAGES.items():
        template = environment.get_template(f"{Path(file).stem}.jinja")
        page = template.render(**common, **sections[file](), file=file, title=title)
        write_text(to / file, page)
        out.append(to / file)
    return out


def render_reports(
    results: Path, entries: Sequence[SiteEntry], to: Path, note: Callable[[str], None]
) -> None:
    """Render the page of every run that is new or has changed since the last call.

    A page that lies beside a record is not copied, because it may come from somebody else.
    """
    new = []
    for entry in entries:
        folder = results / entry.place
        file = to / entry.place / "report.html"
        record = folder / "record.json"
        if file.is_file() and file.stat().st_mtime >= record.stat().st_mtime:
            continue
        new.append((folder, file))
    on_all_cores(_render, new, lambda n: note(f"page {n} of {len(new)}"))


def _render(asked: tuple[Path, Path]) -> None:
    folder, file = asked
    write_text(file, render(load(folder), folder))


def _documents(results: Path, to: Path) -> list[tuple[str, str]]:
    """Copy the pages about several runs to the site; return their links and names.

    Links are left out, because a link in a received folder may lead to any file of the user.
    """
    pages = []
    for path in sorted(p for name in BESIDE for p in results.glob(f"**/{name}")):
        outside = path.is_symlink() or results.resolve() not in path.resolve().parents
        if outside or to.resolve() in path.resolve().parents:
            continue
        place = path.relative_to(results)
        files.write({to / "documents" / place: path.read_bytes()})
        pages.append((f"documents/{quote(str(place))}", str(place)))
    return pages


def counts(entries: Sequence[SiteEntry]) -> list[tuple[Status, int]]:
    """Return the number of runs with each status, worst first."""
    every = [entry.status for entry in entries]
    return [(status, every.count(status)) for status in SEVERITY if status in every]


def titles(entries: Sequence[SiteEntry]) -> dict[str, str]:
    """Return the title of each machine by its key. Each title is taken from the newest run."""
    return {entry.machine: entry.title for entry in reversed(entries)}


def ran(entries: Sequence[SiteEntry]) -> Iterator[Ran]:
    """Yield every case of every run, oldest first."""
    for entry in reversed(entries):
        for figure in entry.cases:
            yield Ran(entry=entry, figure=figure)


@dataclass(frozen=True, kw_only=True)
class Card:
    """One case on one machine over its runs; ``what`` is the quantity that is drawn."""

    case: str
    what: str
    count: int
    last: Ran
    drawn: Markup


def over_time(entries: Sequence[SiteEntry]) -> list[tuple[str, str, list[Card]]]:
    """Return (machine, title, cards) for each machine. Cards with the worst status come first."""
    series: dict[str, dict[str, list[Ran]]] = {}
    for case in ran(entries):
        series.setdefault(case.entry.machine, {}).setdefault(case.figure.case, []).append(case)
    known = titles(entries)
    sections = []
    for machine, cases in series.items():
        cards = [_card(name, of_case) for name, of_case in cases.items()]
        cards.sort(key=lambda card: (SEVERITY.index(card.last.figure.status), card.case))
        sections.append((machine, known[machine], cards))
    return sections


def _card(case: str, of_case: Sequence[Ran]) -> Card:
    """Return a drawing of one case over its runs.

    It shows the metric of the last result in all runs with this metric. If the last result has no
    value, it shows the throughput.
    """
    last = of_case[-1].figure
    scaled = last.value is not None
    points = []
    for ran in of_case:
        same = (ran.figure.metric, ran.figure.against) == (last.metric, last.against)
        value = ran.figure.value if scaled else ran.figure.throughput
        if value is not None and (same or not scaled):
            points.append(
                ChartPoint(
                    value=value,
                    low=ran.figure.low if scaled else None,
                    high=ran.figure.high if scaled else None,
                    status=ran.figure.status,
                    link=ran.link,
                    text=ran.text,
                )
            )
    what = last.metric if scaled else "samples/s"
    label = f"{what} of {case} over {len(points)} runs"
    days = (of_case[0].entry.day, of_case[-1].entry.day)
    return Card(
        case=case,
        what=what,
        count=len(points),
        last=of_case[-1],
        drawn=chart(points, label, days),
    )


def side_by_side(entries: Sequence[SiteEntry]) -> dict[str, object]:
    """Return the newest figure of each case on each machine. Simulated cases are left out."""
    newest: dict[str, dict[str, Ran]] = {}
    stand_ins = set()
    for case in ran(entries):
        if case.figure.stand_in:
            stand_ins.add(case.figure.case)
        else:
            newest.setdefault(case.figure.case, {})[case.entry.machine] = case
    known = titles(entries)
    used = {machine for of_case in newest.values() for machine in of_case}
    rows = sorted(newest.items(), key=lambda row: (-len(row[1]), row[0]))
    return {
        "machines": {key: title for key, title in known.items() if key in used},
        "rows": rows,
        "num_stand_ins": len(stand_ins),
        "counted": {key: sum(entry.machine == key for entry in entries) for key in known},
    }


def nights(entries: Sequence[SiteEntry]) -> dict[str, object]:
    """Return the worst status of each case on each day, newest day first."""
    days = sorted({entry.day for entry in entries}, reverse=True)[:MOST_DAYS]
    rows: dict[tuple[str, str], dict[str, Ran]] = {}
    for case in ran(entries):
        if case.entry.day in days:
            of_case = rows.setdefault((case.entry.title, case.figure.case), {})
            worst = of_case.get(case.entry.day)
            rank = SEVERITY.index(case.figure.status)
            if worst is None or rank <= SEVERITY.index(worst.figure.status):
                of_case[case.entry.day] = case
    ordered = sorted(rows.items(), key=lambda row: (row[0][0], -len(row[1]), row[0][1]))
    return {"days": days, "rows": ordered}


def contracts(entries: Sequence[SiteEntry]) -> list[tuple[SiteEntry, RuleFigure, int]]:
    """Return the newest result of each threshold on each machine, the worst first.

    Each result comes with the number of runs that have the threshold.
    """
    newest: dict[tuple[str, str], tuple[SiteEntry, RuleFigure]] = {}
    asked: dict[tuple[str, str], int] = {}
    for entry in reversed(entries):
        for rule in entry.rules:
            place = (rule.rule, entry.machine)
            newest[place] = (entry, rule)
            asked[place] = asked.get(place, 0) + 1
    rows = [(entry, rule, asked[place]) for place, (entry, rule) in newest.items()]
    return sorted(rows, key=lambda row: (SEVERITY.index(row[1].counts), row[1].rule))
