"""Scores of the rank scan where nothing changed: nights in random order, drawn often.

    python -m harness.features.history.null      # writes null.json anew, in a quarter of a minute

Ranks of independent nights are equally likely in every order, whatever the noise. So the table
depends on the number of nights alone.
"""

import json

import numpy as np

from harness.features.history.scan import BRIEF, ENOUGH, FEWEST_NIGHTS, LONGEST, NULL, normal_scores

NIGHTS = (
    6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 25, 30, 36, 45, 60, 80, 110, 150, 220,
    365, 730,
)  # fmt: skip
P = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 5e-4, 2e-4, 1e-4, 5e-5)
#: Numbers drawn for each number of nights: 600,000 series of 60.
NUMBERS = 36_000_000
#: Of levels that came and went: how often chance may score as high, and series drawn for it.
BRIEF_P = 0.001
BRIEF_SERIES = 20_000


def highest(n: int, count: int, random: np.random.Generator) -> np.ndarray:
    """The best scores of ``count`` series of ``n`` nights in random order."""
    scores = np.tile(normal_scores(n), (count, 1))
    random.permuted(scores, axis=1, out=scores)
    k = np.arange(FEWEST_NIGHTS, n - FEWEST_NIGHTS + 1)
    deviation = np.sqrt((normal_scores(n) ** 2).sum() / (n - 1) * k * (n - k) / n)
    best: np.ndarray = np.max(np.abs(np.cumsum(scores, axis=1)[:, k - 1]) / deviation, axis=1)
    return best


def highest_brief(n: int, count: int, random: np.random.Generator) -> np.ndarray:
    """The best scores of levels that came and went, of ``count`` series in random order."""
    scores = np.tile(normal_scores(n), (count, 1))
    random.permuted(scores, axis=1, out=scores)
    sums = np.cumsum(scores, axis=1)
    square = (normal_scores(n) ** 2).sum() / (n - 1)
    best = np.zeros(count)
    for m in range(FEWEST_NIGHTS, min(LONGEST, n // BRIEF) + 1):
        inside = np.abs(
            sums[:, FEWEST_NIGHTS - 1 + m : n - FEWEST_NIGHTS]
            - sums[:, FEWEST_NIGHTS - 1 : n - FEWEST_NIGHTS - m]
        )
        best = np.maximum(best, inside.max(axis=1) / np.sqrt(square * m * (n - m) / n))
    return best


def main() -> None:
    random = np.random.default_rng(20)
    rows = {}
    for n in NIGHTS:
        remaining = min(NUMBERS // n, 1_000_000)
        drawn = []
        while remaining > 0:
            count = min(remaining, 2_000_000 // n)
            drawn.append(highest(n, count, random))
            remaining -= count
        rows[n] = [round(float(q), 4) for q in np.quantile(np.concatenate(drawn), 1 - np.array(P))]
    lines = ",\n  ".join(f'"{n}": {json.dumps(row)}' for n, row in rows.items())
    briefs = {n: highest_brief(n, BRIEF_SERIES, random) for n in NIGHTS if n >= ENOUGH}
    brief = {n: round(float(np.quantile(s, 1 - BRIEF_P)), 3) for n, s in briefs.items()}
    NULL.write_text(
        f'{{\n "p": {json.dumps(P)},\n "scores": {{\n  {lines}\n }},\n'
        f' "brief": {json.dumps(brief)}\n}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
