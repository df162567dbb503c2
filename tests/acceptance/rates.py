"""How often the judge is wrong, right or undecided: the shipped judge on simulated pairs.

    python tests/acceptance/rates.py [--runs 20000]

Prints the tables of docs/statistics.md. A run looks after pairs 8, 10 .. 16 as a plan does (4 to 8
blocks), or after every pair up to 40 as the published comparison of stopping rules does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.analysis.judging.judge import judge
from harness.record import Status
from harness.spec import Form, Source, Threshold

#: Relative deviation of a pair, as assumed by the comparison of stopping rules.
SD = 0.0133
BOUND = 0.85
BLOCKS = range(8, 17, 2)
EVERY = range(2, 41)

RULE = Threshold(
    name="bound", case="*", metric="efficiency", unit="1", source=Source.REQUIREMENT, at_least=BOUND
)

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Independent normal log ratios."""
    return rng.normal(0, SD, n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t with 3 degrees of freedom, of the same deviation."""
    return rng.standard_t(3, n) / math.sqrt(3) * SD


def bimodal(rng: np.random.Generator, n: int) -> np.ndarray:
    """One launch in five is 4 % slow, of either arm's; centred."""
    slow = 0.04 * (rng.random(n) < 0.2)
    return rng.normal(0, SD / 2, n) - (slow - 0.04 * 0.2)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Exponential towards slow; centred."""
    return SD * (1 - rng.exponential(1, n))


def correlated(rng: np.random.Generator, n: int) -> np.ndarray:
    """AR(1) with 0.4 from pair to pair."""
    out = rng.normal(0, SD, n)
    for i in range(1, n):
        out[i] = 0.4 * out[i - 1] + math.sqrt(1 - 0.16) * out[i]
    return out


NOISES: dict[str, Noise] = {
    "normal": normal,
    "t, 3 degrees": heavy,
    "bimodal": bimodal,
    "skewed": skewed,
    "AR(1) 0.4": correlated,
}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of runs by outcome, and the mean number of pairs at the decision."""

    runs: int
    passed: float
    failed: float
    confirmed: float  # FAILs that a fresh set leaves standing: what is reported
    pairs: float

    def upper(self, share: float, level: float = 0.99) -> float:
        """Upper bound of a rate (Clopper and Pearson)."""
        from scipy.stats import beta

        k = round(share * self.runs)
        return float(beta.ppf(level, k + 1, self.runs - k))


def decide(values: np.ndarray, looks: range) -> tuple[Status, int]:
    """Look until decided; the status and the number of pairs."""
    status, n = Status.INCONCLUSIVE, 0
    for n in looks:
        status = judge(values[:n].tolist(), RULE, Form.RATIO).status
        if status is not Status.INCONCLUSIVE:
            break
    return status, n


def simulate(true: float, noise: Noise, looks: range, runs: int, seed: int = 1) -> Rates:
    """Many runs at one true efficiency."""
    rng = np.random.default_rng(seed)
    count = {Status.PASS: 0, Status.FAIL: 0, "confirmed": 0}
    total = 0
    for _ in range(runs):
        status, n = decide(true * np.exp(noise(rng, looks[-1])), looks)
        total += n
        if status in count:
            count[status] += 1
        if status is Status.FAIL:
            again, _ = decide(true * np.exp(noise(rng, looks[-1])), looks)
            count["confirmed"] += again is Status.FAIL
    return Rates(
        runs=runs, passed=count[Status.PASS] / runs, failed=count[Status.FAIL] / runs,
        confirmed=count["confirmed"] / runs, pairs=total / runs,
    )  # fmt: skip


def lines(runs: int) -> Iterator[str]:
    """The tables, as Markdown."""
    head = "| true value | PASS % | FAIL % | FAIL reported % | undecided % | mean pairs |"
    for title, looks in (("as shipped: after pairs 8, 10 .. 16", BLOCKS),
                         ("after every pair, up to 40", EVERY)):  # fmt: skip
        yield f"\nNormal pairs, bound 0.85, {title}:\n\n{head}\n|---|---|---|---|---|---|"
        for true in (0.80, 0.83, 0.84, 0.85, 0.86, 0.87):
            r = simulate(true, normal, looks, runs)
            yield _row(f"{true:.2f}", r)
    yield f"\nOn the bound itself, other noise, as shipped:\n\n{head.replace('true value', 'noise')}"
    yield "|---|---|---|---|---|---|"
    for name, noise in NOISES.items():
        yield _row(name, simulate(BOUND, noise, BLOCKS, runs))


def _row(name: str, r: Rates) -> str:
    undecided = 1 - r.passed - r.failed
    return (
        f"| {name} | {r.passed:.1%} | {r.failed:.1%} | {r.confirmed:.1%} | {undecided:.1%}"
        f" | {r.pairs:.1f} |"
    ).replace("%", "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    for line in lines(parser.parse_args().runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
