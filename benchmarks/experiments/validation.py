"""Compute every figure of docs/validation.md from data in this repository.

    python benchmarks/experiments/validation.py            # prints the sections and their CPU time
    python benchmarks/experiments/validation.py --write    # writes them to the page, draws its
    chart python benchmarks/experiments/validation.py --quick    # fewer runs in each cell

Only a few tests start launches. The launches of clusters are published logs, and the injected
efficiencies are a record of this repository.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as tree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import detectors
import numpy as np
import rates
import slow_nodes
from scipy import integrate, stats
from slow_nodes import between

from harness.features.foresight.physics.stragglers import slowest_normal
from harness.features.recovery import goodput
from harness.features.recovery.goodput import Costs
from harness.interface.report.page import svg

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "validation.md"
RECORD = ROOT / "tests" / "golden" / "main-job.json.gz"
#: The line of the page after which generated text begins.
HERE = "<!-- from here on: python benchmarks/experiments/validation.py --write -->"
#: Distances of the truth from the bound, as a share of the bound, on either side.
DISTANCES = (0.002, 0.005, 0.01, 0.02)
#: Numbers of launches after which verdicts are compared.
COUNTS = (1, 2, 4, 6, 8, 16)
#: The tests that inject defects: what they inject, their file, and the marks of the tests to run.
PLANTED = (
    ("records edited by hand", "tests/record/test_doctored.py", ""),
    (
        "runs that do not verify, given to a command that reads runs",
        "tests/interface/test_vouching.py",
        "",
    ),
    ("plans whose arms differ from their names", "tests/analysis/judging/test_planned.py", ""),
    (
        "kinds of declared noise under which the judge is not wrong",
        "benchmarks/experiments/test_rates.py",
        "not full",
    ),
    ("incorrect training, in the correctness check", "tests/contract/test_mutants.py", "not full"),
    ("training that cheats in its timed window", "tests/contract/test_cheats.py", "not full"),
)
#: Tests in such a file that inject nothing. Their training is correct and has to pass.
RIGHT = re.compile("honest|correct_twin|a_shipped_strategy")


@dataclass(frozen=True)
class Method:
    """A method that derives a verdict from launches (runs, n) of a subject, relative to the bound
    (log).
    """

    name: str
    passes: Callable[[np.ndarray], np.ndarray]


#: How benchmarks without intervals decide.
METHODS = (
    Method("one launch", lambda x: x[:, 0] >= 0),
    Method("mean of launches", lambda x: np.log(np.exp(x).mean(1)) >= 0),
    Method("best launch", lambda x: x.max(1) >= 0),
)


def draws(cell: np.ndarray, off: float, runs: int, seed: int) -> np.ndarray:
    """Return log ratios to the bound of 16 launches each, whose true mean is ``off`` away from it."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, len(cell), (runs, rates.LOOKS[-1]))
    return np.asarray(off + np.log(cell[place] / cell.mean()))


def ours(cell: np.ndarray, off: float, runs: int, seed: int, n: int) -> tuple[float, float]:
    """Return the shares of wrong and undecided runs after n launches; a FAIL counts after
    confirmation.
    """
    status, pairs = rates.decide(draws(cell, off, runs, seed))
    again, _ = rates.decide(draws(cell, off, runs, seed + 10_000))
    passed = (status == 1) & (pairs <= n)
    failed = (status == -1) & (again == -1) & (pairs <= n)
    wrong = passed if off < 0 else failed
    return float(wrong.mean()), float(1 - (passed | failed).mean())


def simple(cell: np.ndarray, off: float, runs: int, seed: int, n: int, method: Method) -> float:
    """Return the share of wrong verdicts after n launches by a method that always decides."""
    passes = method.passes(draws(cell, off, runs, seed)[:, :n])
    return float((passes if off < 0 else ~passes).mean())


def both_sides(distance: float) -> tuple[float, float]:
    return math.log1p(-distance), math.log1p(distance)


@dataclass(frozen=True)
class Judged:
    """Wrong verdicts in percent by method, launches and distance, each as the mean of all cells."""

    wrong: dict[tuple[str, int, float], float]
    worst: dict[tuple[str, int, float], float]
    undecided: dict[tuple[int, float], float]


def judged(runs: int) -> Judged:
    cells = [rate for _, rate in rates.world()]
    wrong: dict[tuple[str, int, float], float] = {}
    worst: dict[tuple[str, int, float], float] = {}
    undecided: dict[tuple[int, float], float] = {}
    for distance in DISTANCES:
        for n in COUNTS:
            for method in METHODS:
                shares = [
                    simple(cell, off, runs, seed, n, method)
                    for off in both_sides(distance)
                    for seed, cell in enumerate(cells)
                ]
                wrong[method.name, n, distance] = 100 * float(np.mean(shares))
                worst[method.name, n, distance] = 100 * max(shares)
            every = [
                ours(cell, off, runs, seed, n)
                for off in both_sides(distance)
                for seed, cell in enumerate(cells)
            ]
            wrong["scaleproof", n, distance] = 100 * float(np.mean([w for w, _ in every]))
            worst["scaleproof", n, distance] = 100 * max(w for w, _ in every)
            undecided[n, distance] = 100 * float(np.mean([u for _, u in every]))
    return Judged(wrong, worst, undecided)


def on_the_judge(runs: int, write: bool) -> Iterator[str]:
    """Yield section (a): verdicts by several methods on the launches of real clusters."""
    known = judged(runs)
    cells = rates.world()
    launches = sum(len(x) for _, x in cells)
    yield f"Wrong verdicts in % of runs ({len(cells)} cells, {launches:,} launches, {runs:,} runs for each cell)."
    yield "Each value is the mean of all cells and of both sides of the bound; the worst cell is in brackets."
    yield ""
    head = " | ".join(f"bound {100 * d:g} % from the truth" for d in DISTANCES)
    yield f"| verdict from | launches | {head} |"
    yield f"|---|---|{'---|' * len(DISTANCES)}"
    shown = (
        *((m.name, n) for m in METHODS for n in (1, 4, 8, 16) if n == 1 or m is not METHODS[0]),
        *(("scaleproof", n) for n in (4, 8, 16)),
    )
    for name, n in dict.fromkeys(shown):
        if name != "one launch" and n == 1:
            continue
        cell = (f"{known.wrong[name, n, d]:.1f} ({known.worst[name, n, d]:.0f})" for d in DISTANCES)
        yield f"| {name} | {n} | {' | '.join(cell)} |"
    open_ = (f"{known.undecided[16, d]:.0f}" for d in DISTANCES)
    yield f"| scaleproof, INCONCLUSIVE | 16 | {' | '.join(open_)} |"
    yield ""
    yield "![wrong verdicts over the number of launches](validation.svg)"
    yield ""
    if write:
        draw(known)


def draw(known: Judged) -> None:
    """Write the chart of wrong verdicts, with the chart functions of reports."""
    distance = 0.005
    nothing = [None] * len(COUNTS)
    curves = [
        svg.Curve(
            name=name, x=COUNTS, low=nothing, high=nothing,
            y=[known.wrong[name, n, distance] for n in COUNTS],
        )
        for name in (*(m.name for m in METHODS), "scaleproof")
    ]  # fmt: skip
    label = f"wrong verdicts, %, bound {100 * distance:g} % from the truth"
    chart = svg.chart(curves, y_label=label, x_label="launches")
    style = (
        "svg{background:#fff;font-family:sans-serif}.grid{stroke:#d9dce1}"
        ".tick,.legend{font-size:12px;fill:#60646c}.label{font-size:12px;fill:#1c2024}"
    )
    text = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    text = text.replace(">", f"><style>{style}</style>", 1)
    PAGE.with_suffix(".svg").write_text(text + "\n")


def on_detection(quick: bool) -> Iterator[str]:
    """Yield section (b): injected defects, and how often they are detected."""
    yield "| injected | detected, with 95 % interval | false alarms | measured by |"
    yield "|---|---|---|---|"
    yield planted_efficiency()
    for name, file, marks in PLANTED:
        ran = tested(file, marks)
        planted = [passed for test, passed in ran if not RIGHT.search(test)]
        right = [passed for test, passed in ran if RIGHT.search(test)]
        accused = f"correct training: {between(right.count(False), len(right))}" if right else ""
        interval = between(planted.count(True), len(planted))
        yield f"| {name} | {interval} | {accused} | `pytest {file}` |"
    yield from slow(20 if quick else 100)
    yield from regressions(40 if quick else 200)


def planted_efficiency() -> str:
    """Return the row of the known efficiency of 0.85 in the stored record, with two real ranks."""
    document = json.loads(gzip.decompress(RECORD.read_bytes()))
    (verdict,) = (v for v in document["verdicts"] if v["rule"] == "planted_85")
    ends = f"{verdict['value']:.4f} [{verdict['low']:.4f}, {verdict['high']:.4f}]"
    return f"| an efficiency of 0.85 on two real ranks | {ends} | | `{RECORD.relative_to(ROOT)}` |"


def tested(file: str, marks: str) -> list[tuple[str, bool]]:
    """Return the tests of a file that ran, and whether they passed. Each injects one defect or
    none.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
        words += [f"--junitxml={report}", *(["-m", marks] if marks else [])]
        subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        cases = list(tree.parse(report).getroot().iter("testcase"))
    wrong = {"failure", "error"}
    return [
        (case.attrib["name"], not wrong & {child.tag for child in case})
        for case in cases
        if case.find("skipped") is None
    ]


def slow(worlds: int) -> Iterator[str]:
    """Yield rows of one to three slow nodes of 64, found by pairs with the noise of published
    launches.
    """
    every = slow_nodes.pooled()
    for slower in (0.02, 0.05):
        named = planted = wrong = 0
        for seed in range(worlds):
            rng = np.random.default_rng(seed)
            bad = rng.choice(64, int(rng.integers(1, 4)), replace=False)
            world = slow_nodes.play(64, {(int(b),): slower for b in bad}, every, seed)
            planted += len(world.planted)
            named += len(world.planted & world.named)
            wrong += bool(world.named - world.planted)
        yield (
            f"| 1 to 3 of 64 nodes {slower:.0%} slower | {between(named, planted)} |"
            f" worlds with a healthy node named: {between(wrong, worlds)} |"
            " `python benchmarks/experiments/slow_nodes.py` |"
        )


def regressions(count: int) -> Iterator[str]:
    """Yield rows of series of 60 nights with a step, and of as many without one."""
    for kind, step in (("gauss 2 %", 0.03), ("spiky", 0.03), ("quiet 0.5 %", 0.02)):
        series = detectors.nights(kind, step, count, np.random.default_rng(11))
        calm = detectors.nights(kind, 0.0, count, np.random.default_rng(12))
        total = sum(any(up for _, up in detectors.ours(x)) for x in series)
        false = sum(bool(detectors.ours(x)) for x in calm)
        yield (
            f"| a change of {step:.0%} in 60 nightly runs, {kind} noise | {between(total, count)} |"
            f" series without a change: {between(false, count)} | `python benchmarks/experiments/detectors.py` |"
        )


def on_findings(quick: bool) -> Iterator[str]:
    """Yield section (c): published findings, compared with the results of this program."""
    yield "| finding | published | scaleproof | source |"
    yield "|---|---|---|---|"
    yield from bubbles()
    yield from stragglers()
    yield from intervals(40 if quick else 200)
    yield from pipeline()
    yield from breaks_even()


def bubbles() -> Iterator[str]:
    """Yield simulations of torch's schedules, compared with the closed forms of the papers."""
    from harness.training.parallel.schedule import Schedule

    for name, ranks, micro, formula in (
        ("1f1b", 4, 8, (4 - 1) / (8 + 4 - 1)),
        ("1f1b", 8, 16, (8 - 1) / (16 + 8 - 1)),
        ("interleaved", 4, 8, (4 - 1) / (2 * 8 + 4 - 1)),
        ("zbv", 4, 8, None),
    ):
        share = (
            1 - Schedule.of({"schedule": name, "microbatches": micro}, ranks).played().efficiency
        )
        published = "below 1F1B's 0.273 by its design" if formula is None else f"{formula:.3f}"
        yield (
            f"| bubble of {name}, {ranks} stages, {micro} micro-batches | {published} |"
            f" {share:.3f} | simulation of torch's schedule |"
        )


def stragglers() -> Iterator[str]:
    """Yield the mean of the slowest of N equal normals, by an integral that is independent of
    scaleproof.
    """
    for ranks in (2, 8, 64, 1024):
        value, _ = integrate.quad(_largest, -10, 10, args=(ranks,), limit=400)
        yield (
            f"| slowest of {ranks:,} ranks, in deviations of one rank | {value:.4f} (order statistics) |"
            f" {float(slowest_normal(ranks)):.4f} | `harness/features/foresight/physics/stragglers.py` |"
        )


def _largest(x: float, n: int) -> float:
    """Return x times the density of the largest of n."""
    return float(n * x * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1))


def intervals(plays: int) -> Iterator[str]:
    """Yield Daly's interval, compared with the best interval in simulations of random faults."""
    costs = Costs(
        step_s=0.2, slow_s=0.0, save_s=2.0, detect_s=1.0, stop_s=1.0, restart_s=8.0, load_s=2.0
    )
    mtbf_s = 900.0
    daly = goodput.best_every(costs, mtbf_s)

    def mean(every: int) -> float:
        shares = []
        for seed in range(plays):
            faults = _faults(mtbf_s, seed)
            shares.append(goodput.share(goodput.play(costs, 8_000, every, faults)))
        return float(np.mean(shares))

    tried = sorted({daly, *(round(daly * 2 ** (k / 2)) for k in range(-4, 5))})
    means = {every: mean(every) for every in tried}
    best = max(means, key=lambda every: means[every])
    yield (
        f"| Daly's interval, checkpoint 2 s, a fault in 15 minutes | {daly} steps |"
        f" best of {len(tried)} tried: {best} steps; goodput {means[daly]:.4f} by Daly,"
        f" {means[best]:.4f} at best | {plays} simulated fault schedules |"
    )
    yield (
        f"| goodput at that interval, Daly's closed form | {goodput.expected(costs, daly, mtbf_s):.4f} |"
        f" {means[daly]:.4f} | the same schedules |"
    )


def _faults(mtbf_s: float, seed: int) -> Iterator[tuple[float, int]]:
    """Yield faults with exponential gaps."""
    draw_ = random.Random(seed)
    at = 0.0
    while True:
        at += draw_.expovariate(1 / mtbf_s)
        yield at, 0


def pipeline() -> Iterator[str]:
    """Yield a measured pipeline of 4 real ranks with simulated compute, and the limit by its
    bubble.
    """
    document = json.loads(gzip.decompress(RECORD.read_bytes()))
    case = "pipeline/paced-small/weak@4cpu"
    verdicts = {v["metric"]: v for v in document["verdicts"] if v["case"] == case}
    plain, ideal = verdicts["efficiency"], verdicts["efficiency_of_ideal"]
    yield (
        f"| measured pipeline, 4 real ranks with paced work | at most"
        f" {plain['value'] / ideal['value']:.3f} (its bubble) | {plain['value']:.3f}"
        f" [{plain['low']:.3f}, {plain['high']:.3f}] | `{RECORD.relative_to(ROOT)}` |"
    )


def breaks_even() -> Iterator[str]:
    """Yield the link rate at which PowerSGD breaks even."""
    text = (ROOT / "docs" / "compression.md").read_text()
    row = re.search(r"^ powersgd +.*$", text, re.M)
    assert row is not None
    cells = re.split(r"\s{2,}", row[0].strip())
    rate = next(cell for cell in cells if "bit/s" in cell)
    yield (
        "| PowerSGD pays on slow links only | 312 to 239 ms a step, 23 % less, 16 GPUs at"
        " 10 Gbit/s (Vogels et al. 2019, Table 3); seldom any"
        f" on faster ones (Agarwal 2022) | breaks even at {rate}, 2 CPU ranks |"
        " table of docs/compression.md; `scaleproof run compress` measures it |"
    )


def main() -> None:
    """Print the sections, and write them if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices="abc", help="one section")
    options = parser.parse_args()
    runs = 200 if options.quick else 1000
    sections: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
        "a": (
            "Wrong verdicts on launches of real clusters",
            lambda: on_the_judge(runs, options.write),
        ),
        "b": ("Detection of injected defects", lambda: on_detection(options.quick)),
        "c": ("Published findings", lambda: on_findings(options.quick)),
    }
    for name, (title, lines) in sections.items():
        if options.only in (None, name):
            began = time.process_time()
            text = "\n".join([f"## {title}", "", *lines(), ""])
            print(text, flush=True)
            print(f"{title}: {time.process_time() - began:.0f} s", file=sys.stderr, flush=True)
            if options.write:
                put(title, text, [heading for heading, _ in sections.values()])


def put(title: str, text: str, titles: Sequence[str]) -> None:
    """Write one section into the page, in its place among the others."""
    before, mark, after = PAGE.read_text().partition(HERE)
    assert mark, f"no mark in {PAGE}"
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", after, flags=re.M)[1:]}
    parts[title] = text.removeprefix("## ").rstrip() + "\n\n"
    written = "".join(f"## {parts[name]}" for name in titles if name in parts)
    PAGE.write_text(f"{before}{HERE}\n\n{written.rstrip()}\n")


if __name__ == "__main__":
    main()
