"""Inject known causes into training, and check that budgets show their size and name.

    python benchmarks/experiments/causes.py [--repeats 3] [--ms 60] [--operators]

Profiled launches with simulated compute and one or two injected causes are compared with launches
of the same case without causes. Profiles are outlines, or record every operator. The output is the
table of docs/timelines.md. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.documents import Json
from harness.cases import Arm, CaseSpec, Catalogue, Device, Plan, Protocol, Role, Site
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Budget, Purpose, RankBudget, Term
from harness.record.budget import OUTLINE

PLANTS = Path(__file__).parents[2] / "tests" / "plants"
DDP = ("late", "link", "data", "stall", "slow")
#: For each cause, the terms that it must change, and on which ranks: all, the first, the last, or
#: all others than the last.
SHOWS: Mapping[str, Mapping[Term, str]] = {
    "late": {Term.COMPUTE: "last", Term.WAIT: "others"},
    "link": {Term.TRANSFER: "all"},
    "data": {Term.DATA: "all"},
    "stall": {Term.IDLE: "all"},
    "slow": {Term.COMPUTE: "all"},
    "uneven": {Term.COMPUTE: "first"},
}
#: The same for outlines, in which all time of the host inside of forward counts as compute.
OUTLINED = {**SHOWS, "stall": {Term.COMPUTE: "all"}}
KNOB = {"link": "linked.link_ms"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One set of injected causes: the growth of one term, and any wrong name."""

    plants: tuple[str, ...]
    world: int
    term: Term
    planted_ms: float
    found_ms: float
    named: str

    @property
    def limit_ms(self) -> float:
        """The largest allowed error of the growth, in ms."""
        floor, share = (2.0, 0.05) if self.world == 2 else (4.0, 0.10)
        return max(floor, share * self.planted_ms)

    @property
    def ok(self) -> bool:
        """Whether the size and the name of the causes are correct."""
        return abs(self.found_ms - self.planted_ms) <= self.limit_ms and not self.named


def case_of(plants: Sequence[str], world: int, ms: float, known: Catalogue) -> CaseSpec:
    """Return the case with simulated compute and these causes."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
    strategy = "pipeline" if "uneven" in plants or "pipeline" in plants else "linked"
    knobs: dict[str, Json] = {KNOB.get(p, f"plants.{p}_ms"): ms for p in plants if p != "pipeline"}
    if strategy == "pipeline":
        # Few micro-batches mean few sleeps, each of which the kernel ends a little late.
        knobs["pipeline.microbatches"] = 4
        knobs["plants.stages"] = world
    case = site.case(f"{strategy}/plants-small", knobs=knobs)
    return known.normalise(replace(case, data="loaded"))


class Stand:
    """A bench that profiles cases, one launch at a time."""

    def __init__(self, folder: Path, outline: bool = True) -> None:
        self.known = Catalogue([PLANTS])
        self.folder, self.outline = folder, outline
        self.launcher = Bench(self.known, self.known.get("engines", "local"), Where())

    def profile(self, case: CaseSpec) -> Budget:
        """Profile a case in one launch; raise AssertionError if the launch has no budget."""
        arm = Arm(name="@", case=case, role=Role.SUBJECT)
        plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=Protocol(steps=4, cut=2))
        window = plan.profile(self.outline)
        order = Order(plan=plan, arm=arm, purpose=Purpose.PROFILE, window=window, turn=0)
        (described,) = self.launcher.describe([case])
        launch = self.launcher.launch(order, self.folder, described, lambda step: None)
        assert launch.budget is not None, launch.wrong or launch.cause
        return launch.budget

    def close(self) -> None:
        """Stop all agents."""
        self.launcher.worlds.close()


def term_ms(rank: RankBudget, term: Term) -> float:
    """Return the median of a term over the steps, in ms, which a single pause of the host does not
    change.
    """
    return statistics.median(rank.terms.get(term, (0,))) / 1e6


def growth_ms(budget: Budget, bare: Budget, term: Term, where: str) -> float:
    """Return the growth (ms) of a term on the ranks where its cause was injected."""
    last = len(budget.ranks) - 1
    chosen = {"all": range(last + 1), "last": [last], "others": range(last), "first": [0]}[where]
    grown = [term_ms(budget.ranks[r], term) - term_ms(bare.ranks[r], term) for r in chosen]
    return sum(grown) / len(grown)


def shows(budget: Budget) -> Mapping[str, Mapping[Term, str]]:
    """Return the terms that causes must change, for a budget of this kind of profile."""
    return OUTLINED if budget.capture == OUTLINE else SHOWS


def shown_on(plant: str, where: str, plants: Sequence[str]) -> str:
    """Return the ranks on which a cause must show.

    A stall in a pipeline shows only on the stage that holds the first block.
    """
    return "first" if plant == "stall" and "uneven" in plants else where


def misnamed(plants: Sequence[str], budget: Budget, bare: Budget) -> str:
    """Return what the budget names incorrectly; empty if all names are correct."""
    wrong = []
    grown = {t: growth_ms(budget, bare, t, "all") for t in Term}
    wanted = {t for p in plants for t in shows(budget)[p]}
    largest = max(grown, key=lambda t: grown[t])
    if "uneven" in plants:
        wanted |= {Term.BUBBLE}  # because the other stages wait for the slow one
        if budget.imbalance <= bare.imbalance:
            wrong.append("no stage imbalance")
    if largest not in wanted:
        wrong.append(f"largest growth is {largest}")
    if "late" in plants or "uneven" in plants:
        guilty = 0 if "uneven" in plants else len(budget.ranks) - 1
        at = {Term.COMPUTE, *([Term.IDLE] if {"stall", "uneven"} == set(plants) else [])}
        b = budget.blame
        if b is None or b.rank != guilty or b.term not in at:
            wrong.append(f"blamed {b and (b.rank, b.term)}")
    return "; ".join(wrong)


def sets() -> list[tuple[str, ...]]:
    """Return the sets of causes: each alone, pairs, and an uneven pipeline with other causes."""
    alone = [(p,) for p in (*DDP, "uneven")]
    pairs = list(itertools.combinations(DDP, 2))
    return [*alone, *pairs, *((p, "uneven") for p in ("data", "stall"))]


def measure(
    worlds: Sequence[int],
    chosen: Sequence[tuple[str, ...]],
    repeats: int,
    ms: float,
    folder: Path,
    outline: bool = True,
) -> Iterator[Row]:
    """Yield the rows of every set; each repetition launches the case with and without the causes."""
    bench = Stand(folder, outline)
    try:
        for world in worlds:
            for plants in chosen:
                bare_case = ("pipeline",) if "uneven" in plants else ()
                listed, bare = [], []
                for _ in range(repeats):
                    bare.append(bench.profile(case_of(bare_case, world, ms, bench.known)))
                    listed.append(bench.profile(case_of(plants, world, ms, bench.known)))
                names = [misnamed(plants, f, b) for f, b in zip(listed, bare, strict=True)]
                wrong = [n for n in names if n]
                at = shows(listed[0])
                for term in dict.fromkeys(t for p in plants for t in at[p]):
                    where = [shown_on(p, at[p][term], plants) for p in plants if term in at[p]]
                    grown = [
                        growth_ms(f, b, term, where[0]) for f, b in zip(listed, bare, strict=True)
                    ]
                    yield Row(
                        plants=plants, world=world, term=term, planted_ms=ms * len(where),
                        found_ms=statistics.median(grown),
                        named=wrong[0] if len(wrong) > repeats / 2 else "",
                    )  # fmt: skip
    finally:
        bench.close()


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ms", type=float, default=60.0, help="size of every cause, per step")
    parser.add_argument("--operators", action="store_true", help="record every operator")
    parsed = parser.parse_args()
    print("| ranks | causes | term | injected, ms | found, ms | limit, ms | |")
    print("|---|---|---|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = (2, 4), sets(), parsed.repeats, parsed.ms, Path(folder), not parsed.operators
        for row in measure(*chosen):
            missed += not row.ok
            verdict = row.named or ("" if row.ok else "MISSED")
            print(
                f"| {row.world} | {' + '.join(row.plants)} | {row.term} | {row.planted_ms:.0f} |"
                f" {row.found_ms:.1f} | {row.limit_ms:.0f} | {verdict} |",
                flush=True,
            )
    print(f"\n{'met' if not missed else f'MISSED in {missed} rows'}: sizes and names")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
