"""The result files of asv for nightly runs, and local copies of the scripts that asv's
page loads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.documents import Json
from harness.features.history import ledger
from harness.features.history.night import QUANTITIES, Night, Value

#: The files that asv 0.6 loads. Each key is the end of a file's address. Each value is the npm
#: package that contains the file, and its path in the package.
PACKAGES: Mapping[str, tuple[str, str]] = {
    "jquery-3.3.1.min.js": ("jquery@3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": ("jquery-flot@0.8.3", "jquery.flot.js"),
    "jquery.flot.time.min.js": ("jquery-flot@0.8.3", "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": ("jquery-flot@0.8.3", "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": ("jquery-flot@0.8.3", "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": ("flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js"),
    "stupidtable.min.js": ("stupid-table-plugin@1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5@2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
}
#: Folder in which npm installs, and folder of the page with the copies.
INSTALLED = "node_modules"
BESIDE = "beside"
#: Patterns of an address in an HTML tag, and of attributes with which a browser checks the file.
_TAG = re.compile(r'(src|href)="https://[^"]+/([^/"]+\.(?:js|css))"([^>]*)')
_GUARD = re.compile(r' (integrity|crossorigin|referrerpolicy)="[^"]*"')


def beside(html: Path, results: Path) -> list[str]:
    """Make the page in ``html`` load copies of the files that npm installed in ``results``.

    Return the names of the files that it still loads from the Internet.
    """
    index = html / "index.html"
    missing: list[str] = []

    def local(tag: re.Match[str]) -> str:
        attribute, name, rest = tag.groups()
        package, file = PACKAGES.get(name, ("", ""))
        source = results / INSTALLED / package.rpartition("@")[0] / file
        if not package or not source.is_file():
            missing.append(name)
            return tag[0]
        (html / BESIDE).mkdir(exist_ok=True)
        files.write({html / BESIDE / name: source.read_bytes()})
        return f'{attribute}="{BESIDE}/{name}"{_GUARD.sub("", rest)}'

    files.write({index: _TAG.sub(local, index.read_text(encoding="utf-8"))})
    return missing


def command(results: Path) -> str:
    """Return the command that installs the npm packages of all files that asv's page loads."""
    packages = dict.fromkeys(package for package, _ in PACKAGES.values())
    return f"npm install --prefix {results} {' '.join(packages)}"


def main() -> int:
    """Rewrite a page that ``asv publish`` made; return 1 if it still loads files from the
    Internet.
    """
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    missing = beside(results / "html", results)
    if missing:
        print(f"still loaded from the Internet: {', '.join(missing)}\n  try  {command(results)}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())


#: Version of the benchmarks; asv does not compare values of different versions.
VERSION = "2"
#: Name of the only asv environment.
ENVIRONMENT = "scaleproof"
#: Names of units for asv, which formats only seconds and bytes.
_UNITS = {"s": "seconds", "B": "bytes"}
#: Folders of the ledger and of asv's result files, inside the results folder.
LEDGER = "axis.git"
RESULTS = "asv"
#: Version of asv's format of result files, and the columns of a benchmark's row.
_FORMAT = 2
_STATISTICS = ("ci_99_a", "ci_99_b", "q_25", "q_75", "number", "repeat")
_COLUMNS = (
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    *(f"stats_{name}" for name in _STATISTICS),
    "samples",
    "profile",
)


def benchmark(quantity: str) -> str:
    """Return the name of a quantity in asv."""
    return f"records.track_{quantity}"


def unit(quantity: str) -> str:
    """Return the unit of a quantity in asv."""
    return _UNITS.get(QUANTITIES[quantity].unit, QUANTITIES[quantity].unit)


def machine(night: Night, stand_in: bool) -> str:
    """Return the name of the machine in asv.

    Simulated devices count as a separate machine, so that they never share a series with hardware.
    """
    return f"paced-{night.hardware}" if stand_in else night.hardware


def shown(quantity: str, value: Value) -> float:
    """Return the value for asv, which does not accept losses below zero."""
    return max(0.0, value.value) if QUANTITIES[quantity].points else value.value


def write(results: Path, nights: Sequence[Night]) -> dict[str, str]:
    """Update ledger and result files to these nightly runs, and return the commit of each run.

    Result files that are up to date are not changed. Inserting a run before others changes the
    commits of the later ones. Values that ``asv run`` stored for a run move to its new commit.
    """
    commits = ledger.write(results / LEDGER, nights)
    folder = results / RESULTS
    _moved(results, commits)
    known = _benchmarks(folder)
    wanted = _cases(nights)
    entries = {benchmark(q): _entry(q, cases) for q, cases in wanted.items()}
    if any(known.get(name) != entry for name, entry in entries.items()):
        _write_json(folder / "benchmarks.json", {**known, **entries, "version": 2})
    for night in nights:
        for stand_in in {kept.stand_in for kept in night.cases.values()}:
            _write(folder, night, stand_in, commits[night.run], entries)
    return commits


def _benchmarks(folder: Path) -> dict[str, Json]:
    """Return the benchmarks that asv knows; empty if their file is missing or damaged."""
    try:
        known: dict[str, Json] = json.loads(
            (folder / "benchmarks.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return {}
    return known


def _cases(nights: Sequence[Night]) -> dict[str, list[str]]:
    """Return for each quantity all cases that ever had it, in the order of the nightly runs."""
    by_quantity: dict[str, dict[str, None]] = {quantity: {} for quantity in QUANTITIES}
    for night in nights:
        for case, kept in night.cases.items():
            for quantity in kept.values:
                by_quantity[quantity][case] = None
    return {quantity: list(cases) for quantity, cases in by_quantity.items() if cases}


def _file(folder: Path, name: str, commit: str) -> Path:
    """Return the path of the result file of a machine and commit."""
    return folder / name / f"{commit[:8]}-{ENVIRONMENT}.json"


def _moved(results: Path, commits: Mapping[str, str]) -> None:
    """Rename result files whose commit is no longer on the ledger to the new commit of
    their run.
    """
    commits_here = {commit[:8] for commit in (ledger.root(results / LEDGER), *commits.values())}
    for path in (results / RESULTS).glob(f"*/????????-{ENVIRONMENT}.json"):
        if not _whole(path):  # an interrupted writer left it; it is written again
            path.unlink()
            continue
        if path.name[:8] in commits_here:
            continue
        run = ledger.run_at(results / LEDGER, path.name[:8])
        new = commits.get(run) if run else None
        if new is not None:
            stored = json.loads(path.read_text(encoding="utf-8"))
            target = _file(results / RESULTS, path.parent.name, new)
            if not target.exists():
                _write_json(target, {**stored, "commit_hash": new})
        path.unlink()


def _whole(path: Path) -> bool:
    """Return whether a file is complete JSON."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _write(
    folder: Path, night: Night, stand_in: bool, commit: str, entries: Mapping[str, dict[str, Json]]
) -> None:
    """Write the result file of one nightly run and machine.

    Values that ``asv run`` stored in it are preserved.
    """
    name = machine(night, stand_in)
    facts = {"cpu": "", "num_cpu": "", "gpu": "", "arch": "", "os": "", "ram": "", "machine": name}
    facts |= night.machine
    described = folder / name / "machine.json"
    if not (described.is_file() and _whole(described)):
        _write_json(described, {**facts, "version": 1})
    path = _file(folder, name, commit)
    wanted = _by_quantity(night, stand_in)
    if not wanted or (path.is_file() and _says(path, wanted)):
        return
    at_ms = round(night.when.timestamp() * 1000)
    stored: dict[str, Any] = dict(
        commit_hash=commit,
        env_name=ENVIRONMENT,
        date=at_ms,
        params=facts,
        python="",
        requirements={},
        env_vars={},
        result_columns=list(_COLUMNS),
        results={},
        durations={},
        version=_FORMAT,
    )
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
    for quantity, of_case in wanted.items():
        row = _row(quantity, of_case, at_ms)
        stored["results"][benchmark(quantity)] = [row.get(c) for c in stored["result_columns"]]
    _write_json(path, stored)


def _by_quantity(night: Night, stand_in: bool) -> dict[str, dict[str, Value]]:
    """Return the values of a nightly run, by quantity and then by case."""
    cases = {c: kept.values for c, kept in night.cases.items() if kept.stand_in is stand_in}
    by_quantity = {q: {c: v[q] for c, v in cases.items() if q in v} for q in QUANTITIES}
    return {quantity: of_case for quantity, of_case in by_quantity.items() if of_case}


def _says(path: Path, wanted: Mapping[str, Mapping[str, Value]]) -> bool:
    """Return whether a result file lists the wanted cases for every wanted quantity."""
    known = json.loads(path.read_text(encoding="utf-8"))["results"]
    rows = (
        (known.get(benchmark(q)), [[repr(case) for case in cases]]) for q, cases in wanted.items()
    )
    return all(row is not None and row[1] == params for row, params in rows)


def _row(quantity: str, of_case: Mapping[str, Value], at_ms: int) -> dict[str, Json]:
    """Return the row of a quantity in a result file, with a value and its statistics for
    each case.
    """
    numbers = [shown(quantity, value) for value in of_case.values()]
    statistics = [_statistics(quantity, value) for value in of_case.values()]
    return {
        "result": numbers,
        "params": [[repr(case) for case in of_case]],
        "version": VERSION,
        "started_at": at_ms,
        "samples": [
            list(value.launches or [number])
            for value, number in zip(of_case.values(), numbers, strict=True)
        ],
        **{f"stats_{name}": [statistic[name] for statistic in statistics] for name in _STATISTICS},
    }


def _statistics(quantity: str, value: Value) -> dict[str, float]:
    """Return the statistics of a value for asv.

    asv computes them from the launches, unless the value has an interval. The interval is stored
    under asv's name ``ci_99``, although an interval of an efficiency has 95 % confidence at each
    end.
    """
    from asv_runner.statistics import compute_stats

    center = shown(quantity, value)
    _, statistics = compute_stats(list(value.launches or [center]), 1)
    if value.low is not None and value.high is not None:
        low, high = (shown(quantity, Value(value=end)) for end in (value.low, value.high))
        # asv shows half of the distance between the quartiles as +-. For a normal distribution,
        # they follow from the interval.
        quarter = 0.41 * (high - low) / 2
        statistics |= {"ci_99_a": low, "ci_99_b": high, "q_25": center - quarter}
        # asv ignores the interval if repeat is 1
        statistics |= {"q_75": center + quarter, "repeat": 2}
    return {name: statistics[name] for name in _STATISTICS}


def _write_json(path: Path, document: Json) -> None:
    """Write a document as JSON."""
    with files.writing_to(path.parent):
        files.write({path: json.dumps(document, indent=1, sort_keys=True) + "\n"})


def _entry(quantity: str, cases: Sequence[str]) -> dict[str, Json]:
    """Return the description of a benchmark for asv."""
    return dict(
        name=benchmark(quantity),
        type="track",
        unit=unit(quantity),
        params=[[repr(case) for case in cases]],
        param_names=["case"],
        version=VERSION,
        timeout=60.0,
        code=f"{quantity} of the night",
        pretty_name=quantity.replace("_", " "),
    )
