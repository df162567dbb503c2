"""Measure known efficiencies with everything from forked ranks to the judge.

    python benchmarks/experiments/planted.py [--ladders 25] [--blocks 8] [--keep FILE]

Simulated steps end at scheduled times, T_N = T_1 / E, with 1 % noise between launches from a seed.
For each efficiency and world size, the table has the error without that noise, how often the
interval contains the known efficiency, and how bounds 2 points below and above it are decided. The
exit status is 1 if a goal is missed.

The experiment takes more than an hour. ``--keep`` stores every sweep, and continues after an
interrupt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.analysis.judging import contrast_data as paired
from harness.analysis.judging.judge import estimate, judge_values
from harness.base.documents import from_doc, to_doc
from harness.cases import (
    BoundSource,
    Catalogue,
    Device,
    Form,
    Plan,
    Protocol,
    Settings,
    Site,
    Threshold,
)
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Status

CELLS = [(e, n) for e in (0.95, 0.85, 0.70, 0.50) for n in (2, 4)]
STRATEGIES = ("ddp", "pipeline")
MARGIN = 0.02


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """One measured sweep: its pairs, the known efficiency (``truth``), and the error without noise."""

    name: str
    world: int
    seed: int
    truth: float
    pairs: tuple[float, ...]
    bias: float

    @property
    def covered(self) -> bool:
        """Whether the interval after all pairs contains the known efficiency."""
        e = estimate(self.pairs, Form.RATIO)
        return e.low is not None and e.high is not None and e.low <= self.truth <= e.high

    def decided(self, bound: float) -> Status:
        """Return the verdict on ``at_least = bound``, checked after every block from the fourth."""
        rule = Threshold(
            name="b", case="*", metric="efficiency", unit="1", source=BoundSource.REQUIREMENT,
            at_least=bound,
        )  # fmt: skip
        for n in range(min(8, len(self.pairs)), len(self.pairs) + 1, 2):
            status = judge_values(self.pairs[:n], rule, Form.RATIO).status
            if status is not Status.INCONCLUSIVE:
                return status
        return Status.INCONCLUSIVE


def plan_of(
    efficiency: float,
    world: int,
    strategy: str,
    seed: int,
    blocks: int,
    known: Catalogue,
    steps: int = 6,
) -> Plan:
    """Return a plan that compares one world size with plain.

    Ranks that use the same few cores need longer steps to end on schedule.
    """
    slot_ms = {"ddp": 170.0, "pipeline": 80.0 * (world + 1)}[strategy]
    knobs = {
        "paced.mode": "schedule",
        "paced.plant": f"{world}:{efficiency}",
        "paced.step_ms": max(85.0, efficiency * slot_ms),
    }
    site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
    case = site.case(f"{strategy}/paced-small", knobs=knobs)
    protocol = Protocol(steps=steps, cut=1, min_blocks=blocks, max_blocks=blocks, seed=seed)
    plan = ladder(case, (world,), baselines=("plain",), protocol=protocol)
    return normalise(plan, known)


def measure(
    cells: Sequence[tuple[float, int, str, int]], blocks: int, results: Path, steps: int = 6
) -> Iterator[Ladder]:
    """Measure sweeps of (efficiency, world, strategy, seed) in one run.

    A sweep is lost, and this is printed, if the host stood still for longer than the schedule
    allows.
    """
    known = Catalogue()
    session = Session(known, Settings(timeline=False, fabric=False), results, (), Progress())
    measurer = Measurer(session)
    try:
        for efficiency, world, strategy, seed in cells:
            plan = plan_of(efficiency, world, strategy, seed, blocks, known, steps)
            measurer.measure([plan])
            run = measurer.run.record(complete=True)
            (contrast,) = plan.contrasts
            pairs = paired.pairs(run, plan, contrast).values
            if not pairs:
                (verdict,) = measurer.verdicts(plan)
                sys.stderr.write(f"lost: {plan.name}: {verdict.detail}\n")
                continue
            yield Ladder(
                name=f"{strategy} @{world}",
                world=world,
                seed=seed,
                truth=efficiency,
                pairs=pairs,
                bias=efficiency * _error(paired.timed(run, plan)),
            )
    finally:
        session.close()


def _error(launches: Sequence[LaunchRecord]) -> float:
    """Return the median error of pairs relative to the scheduled times of their launches.

    The median ignores single pauses of the host, for which the measurement is not responsible.
    """
    late: dict[int, float] = {}
    for x in launches:
        if x.steps is None or x.ranks[0].planted_s is None:
            continue
        step_s = max(r.window_s for r in x.ranks) / x.steps.count
        error = math.log(step_s / x.ranks[0].planted_s)
        late[x.turn] = late.get(x.turn, 0.0) + (error if x.arm == "plain" else -error)
    return math.expm1(median(list(late.values())))


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ladders", type=int, default=25, help="per cell")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument(
        "--keep", type=Path, help="file that stores the sweeps; stored sweeps are not repeated"
    )
    parsed = parser.parse_args()
    every: list[Ladder] = []
    if parsed.keep is not None and parsed.keep.exists():
        lines = parsed.keep.read_text().splitlines()
        every = [from_doc(Ladder, json.loads(line)) for line in lines]
    print("| efficiency | ranks | sweeps | bias, points | covered | decided correctly | wrong |")
    print("|---|---|---|---|---|---|---|")
    for efficiency, world in CELLS:
        ladders = [f for f in every if (f.truth, f.world) == (efficiency, world)]
        seeds = set(range(parsed.ladders)) - {f.seed for f in ladders}
        cells = [(efficiency, world, STRATEGIES[i % 2], i) for i in sorted(seeds)]
        with tempfile.TemporaryDirectory() as folder:
            for ladder_ in measure(cells, parsed.blocks, Path(folder)):
                ladders.append(ladder_)
                every.append(ladder_)
                if parsed.keep is not None:
                    with parsed.keep.open("a") as handle:
                        handle.write(json.dumps(to_doc(ladder_)) + "\n")
        right, wrong = decisions(ladders)
        worst = max((abs(f.bias) for f in ladders), default=0.0) * 100
        print(
            f"| {efficiency} | {world} | {len(ladders)} | {worst:.3f} |"
            f" {sum(f.covered for f in ladders)} | {right} of {2 * len(ladders)} | {wrong} |",
            flush=True,
        )
    right, wrong = decisions(every)
    total = 2 * len(every)
    aims = {
        "bias within 0.2 points": max(abs(f.bias) for f in every) <= 0.002,
        "covered in 95 %": sum(f.covered for f in every) >= 0.95 * len(every),
        "decided correctly in 95 %": right >= 0.95 * total,
        "wrong in at most 3 %": wrong <= 0.03 * total,
    }
    print("\n" + "\n".join(f"{'met' if ok else 'MISSED'}: {aim}" for aim, ok in aims.items()))
    return 0 if all(aims.values()) else 1


def decisions(ladders: Sequence[Ladder]) -> tuple[int, int]:
    """Return the numbers of correct and wrong decisions on bounds 2 points below and above the
    truth.
    """
    below = [f.decided(f.truth - MARGIN) for f in ladders]
    above = [f.decided(f.truth + MARGIN) for f in ladders]
    right = below.count(Status.PASS) + above.count(Status.FAIL)
    return right, below.count(Status.FAIL) + above.count(Status.PASS)


if __name__ == "__main__":
    raise SystemExit(main())
