"""Compare detectors of changes on the same series: this project's, asv's and apache-otava's.

    python benchmarks/experiments/detectors.py [--series 500] [--nightly 120]  # tox -e detectors

Each series has 60 nightly values, with a step at night 40 or without one. There are four times as
many series without a step. ``any`` is the share of series in which a step up is reported, and
``near`` is the share of these whose date is within 2 nights. ``false`` is the share of series
without a step in which a change is reported. ``--nightly`` runs the detectors every night from
night 15 on, as a user does. It prints the share of series with a report before the step, the share
in which the step is found within 20 nights, and the median delay. Detectors that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from harness.features.history import scan

NIGHTS, AT, NEAR = 60, 40, 2
#: A function that returns the changes in a series: their nights, and whether they go up.
Detector = Callable[[np.ndarray], list[tuple[int, bool]]]
CELLS = (
    ("gauss 2 %", 0.0), ("gauss 2 %", 0.03), ("gauss 2 %", 0.05), ("gauss 2 %", 0.10),
    ("spiky", 0.0), ("spiky", 0.03), ("AR(1) .5", 0.0), ("AR(1) .5", 0.03),
    ("quiet 0.5 %", 0.0), ("quiet 0.5 %", 0.02), ("quiet 0.5 %", 0.03),
)  # fmt: skip


def nights(kind: str, step: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Return step times (count, NIGHTS) around 1 with one kind of noise."""
    sd = 0.005 if kind.startswith("quiet") else 0.02
    x = random.normal(0, sd, (count, NIGHTS))
    if kind == "spiky":
        wild = random.random(x.shape) < 0.05
        x += np.where(wild, random.uniform(0.05, 0.2, x.shape), 0.0)
    if kind.startswith("AR"):
        for i in range(1, NIGHTS):
            x[:, i] = 0.5 * x[:, i - 1] + math.sqrt(0.75) * x[:, i]
    x = 1 + x
    x[:, AT:] *= 1 + step
    return x


def ours(x: np.ndarray) -> list[tuple[int, bool]]:
    return [(c.at, c.size.by > 0) for c in scan.changes(np.log(x), math.log1p(0.01))]


def asvs(x: np.ndarray) -> list[tuple[int, bool]]:
    """Return the steps up that asv 0.6 reports with a regression threshold of 1 %."""
    from asv import step_detect

    steps = step_detect.detect_steps(list(map(float, x)), [1.0] * len(x))
    _, _, jumps = step_detect.detect_regressions(steps, 0.01)
    return [(int(j[1]), True) for j in jumps or ()]


def otavas(x: np.ndarray) -> list[tuple[int, bool]]:
    """Return the changes that apache-otava 0.8 reports with its default window and p.

    The smallest reported change is 1 %, as in this project's detector.
    """
    from otava.analysis import compute_change_points

    values = list(map(float, x))  # otava fails on arrays
    points, _ = compute_change_points(values, window_len=50, max_pvalue=0.001, min_magnitude=0.01)
    return [(p.index, bool(x[p.index :].mean() > x[: p.index].mean())) for p in points]


def detectors() -> dict[str, Detector]:
    out: dict[str, Detector] = {"scaleproof": ours}
    out |= {"asv 1 %": asvs} if importlib.util.find_spec("asv") else {}
    return out | ({"otava": otavas} if importlib.util.find_spec("otava") else {})


def table(count: int) -> list[str]:
    """Return a row for each detector, kind of noise and step."""
    lines = [f"{'':12} {'noise':12} {'step':>5} {'any':>7} {'near':>6} {'false':>7} {'ms':>6}"]
    for kind, step in CELLS:
        random = np.random.default_rng(11)
        many = count if step else 4 * count  # more series, because false reports are rare
        series = nights(kind, step, many, random)
        for name, detect in detectors().items():
            began = time.perf_counter()
            detected = [detect(x) for x in series]
            took = 1e3 * (time.perf_counter() - began) / many
            named = [t for t in detected if any(up or not step for _, up in t)]
            near = [t for t in named if any(up and abs(i - AT) <= NEAR for i, up in t)]
            any_, false = f"{len(named) / many:.3f}", ""
            if not step:
                any_, false = "", any_
            close = f"{len(near) / max(len(named), 1):.2f}" if step else ""
            lines.append(
                f"{name:12} {kind:12} {step:5.0%} {any_:>7} {close:>6} {false:>7} {took:6.2f}"
            )
    return lines


def nightly(count: int) -> list[str]:
    """Return rows on false reports and delays if the detectors run every night."""
    lines = [f"{'':12} {'noise':12} {'step':>5} {'before':>7} {'found':>6} {'delay':>6}"]
    for kind, step in (
        ("gauss 2 %", 0.03),
        ("spiky", 0.03),
        ("AR(1) .5", 0.03),
        ("quiet 0.5 %", 0.02),
    ):
        series = nights(kind, step, count, np.random.default_rng(12))
        for name, detect in detectors().items():
            early, delays = 0, []
            for x in series:
                looks = (n for n in range(15, NIGHTS + 1) if any(up for _, up in detect(x[:n])))
                first = next(looks, None)
                early += first is not None and first <= AT
                if first is not None and first > AT:
                    delays.append(first - AT)
            delay = f"{len(delays) / max(count - early, 1):.2f}"
            lines.append(
                f"{name:12} {kind:12} {step:5.0%} {early / count:7.2f} {delay:>6}"
                f" {median(delays) if delays else math.nan:6.0f}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=500)
    parser.add_argument("--nightly", type=int, default=0)
    parsed = parser.parse_args(argv)
    print("\n".join(table(parsed.series)))
    if parsed.nightly:
        print("\n".join(["", *nightly(parsed.nightly)]))


if __name__ == "__main__":
    main()
