"""Measure how far the losses of correct launches are from the reference: the table of
docs/trust.md.

    python benchmarks/experiments/honest.py [--seeds 20] [--ranks 2 3 4] [--parts strategies]
        [--only fsdp] [--results FILE]

Every shipped strategy and compressor trains for 32 steps in every precision that it supports. A row
has the largest deviation of a step and of a block of steps, and the largest error of a correctness
check that replicates bound, divided by their limits. A correct launch with a value above 1 would be
reported as incorrect. The exit status is 1 if one was.

With ``--results`` every launch is written to that file immediately, as one line, and the same
command continues after an interrupt. All cases run with one seed, in random order, before the next
seed; so an incomplete file covers all cases equally. Cases of the same training have one reference
in common, as in a run. The last line states the error rate that is excluded with 95 % confidence: 3
in n launches, if no launch is reported as incorrect.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import beta

from harness.analysis.samples import references
from harness.base.errors import ScaleproofError
from harness.cases import (
    Arm,
    CaseSpec,
    Catalogue,
    Device,
    Plan,
    Precision,
    Protocol,
    Role,
    Site,
    Window,
)
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Described, LaunchRecord, Purpose
from harness.record.store import load_samples

STEPS = 32
FRAMEWORKS = {"accelerate", "deepspeed", "lightning_fabric", "megatron", "ray_train"}
MODELS = {
    "expert_parallel": "moe-nano",
    "context_parallel": "decoder-nano",
    "table_parallel": "dlrm-nano",
}
#: Models for compressors: few parameters, a transformer, convolutions, equal gradients on all
#: ranks.
CODED = ("mlp-nano", "decoder-nano", "resnet-nano", "paced-small")
#: Compressors that make no progress on the last model, which is reported correctly. No gradient
#: reaches the magnitude that ``threshold`` sends. Sketches of 4 ranks make 2 % of the progress of
#: dense training in 8 steps, and 3 % in 32.
HARDLY_LEARN = ("threshold", "countsketch")
KNOWN = Catalogue()
#: Number of cases that are described together, because separate descriptions take longer than the
#: trainings.
TOGETHER = 48


def strategies() -> Iterator[str]:
    """Yield every shipped strategy with one model."""
    for strategy in sorted(KNOWN.entries["strategies"]):
        if strategy not in FRAMEWORKS | {"single"}:
            yield f"{strategy}/{MODELS.get(strategy, 'mlp-nano')}"


def codecs() -> Iterator[str]:
    """Yield every shipped compressor with every model for compressors."""
    for codec, entry in sorted(KNOWN.entries["compressors"].items()):
        if not entry.head.get("CONTROL"):
            models = CODED[:-1] if codec in HARDLY_LEARN else CODED
            yield from (f"compressed:{codec}/{model}" for model in models)


def models() -> Iterator[str]:
    """Yield the other models with strategies that divide them differently."""
    for model in ("decoder-nano", "moe-nano", "resnet-nano"):
        for strategy in ("ddp", "fsdp", "tensor_parallel", "pipeline"):
            yield f"{strategy}/{model}"


PARTS = dict(strategies=strategies, codecs=codecs, models=models)


class Wrong(Exception):
    """A correct launch that would be reported as ERROR."""


class Ratios(NamedTuple):
    """The largest deviations of a training, divided by their limits, and any reported error."""

    step: float
    block: float
    check: float
    wrong: str


def of_checks(gate: LaunchRecord) -> float:
    """Return the largest error of a correctness check that replicates bound, by its limit."""
    bounded = (
        check.value / check.limit
        for rank in gate.ranks
        for check in rank.checks
        if "other roundings" in check.detail and check.limit and check.value is not None
    )
    return max(bounded, default=0.0)


class Stand:
    """Trains a case and its reference."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = Bench(KNOWN, KNOWN.get("engines", "local"), Where())
        self._curves: dict[tuple[str, bool, bool], references.LossCurve] = {}

    def ratios(self, case: CaseSpec, described: Described) -> Ratios | None:
        """Return the ratios of a case's training and of its correctness check.

        Return None if the case is refused or has no reference. The ratios are 0 if bits must be
        equal.
        """
        if described.reference is None or described.unsupported or described.error:
            return None
        arm = Arm(name="@", case=case, role=Role.SUBJECT)
        plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=Protocol(steps=STEPS, cut=2))
        try:
            gate = self._right(self._launch(plan, described, Purpose.GATE))
            curve = self._curve(plan, described)
        except Wrong as error:
            return Ratios(0.0, 0.0, 0.0, str(error))
        timed = self._launch(plan, described, Purpose.TIMED, curve)
        if timed.cause is not None:
            return Ratios(0.0, 0.0, 0.0, f"timed: {timed.cause}")
        wrong = "; ".join(
            timed.wrong
        )  # by the checks of losses, samples, replicas, bytes and clocks
        samples = [load_samples(self.folder, timed.launch, r) for r in timed.ranks]
        if not described.reference.limit:
            return Ratios(0.0, 0.0, of_checks(gate), wrong)
        mine = references.mean_losses(samples)
        off = references.relative(mine, curve.losses[: len(mine)])
        steps = np.abs(off) / curve.limits(len(mine))
        blocks = references.block_rms(off) / curve.block_limits(len(mine))
        return Ratios(float(steps.max()), float(blocks.max()), of_checks(gate), wrong)

    def _curve(self, plan: Plan, described: Described) -> references.LossCurve:
        """Return the losses of the reference, which all cases of the same training use."""
        (arm,) = plan.arms
        wanted = described.reference
        assert wanted is not None
        key = (wanted.key, bool(wanted.limit), wanted.coarse)
        if key not in self._curves:
            launch = self._right(self._launch(plan, described, Purpose.REFERENCE))
            known = {arm.case.hash: described}
            curve = references.curve(self.folder, [launch], known, arm.case.hash)
            assert curve is not None
            self._curves[key] = curve
        return replace(self._curves[key], limit=wanted.limit)

    @staticmethod
    def _right(launch: LaunchRecord) -> LaunchRecord:
        """Return the launch; raise Wrong if it broke or if one of its checks failed."""
        failed = [check for rank in launch.ranks for check in rank.checks if not check.ok]
        if failed:
            check = failed[0]
            raise Wrong(f"{launch.purpose}: {check.name}: {check.detail}, {check.value}")
        if launch.cause is not None:
            raise Wrong(f"{launch.purpose}: {launch.cause}")
        return launch

    def _launch(
        self,
        plan: Plan,
        described: Described,
        purpose: Purpose,
        curve: references.LossCurve | None = None,
    ) -> LaunchRecord:
        (arm,) = plan.arms
        limit = described.reference is not None and described.reference.limit
        order = Order(
            plan=plan,
            arm=arm,
            purpose=purpose,
            window=Window(steps=STEPS, cut=0 if purpose is Purpose.REFERENCE else 2),
            turn=0,
            reference=curve,
            replicates=references.REPLICATES if limit else 0,
        )
        return self.bench.launch(order, self.folder, described, lambda step: None)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of one launch. A case that is ``refused`` has no values."""

    case: str
    ranks: int
    precision: str
    seed: int
    step: float = 0.0
    block: float = 0.0
    check: float = 0.0
    wrong: str = ""
    refused: bool = False


Key = tuple[str, int, str, int]


def trials(seeds: int, ranks: list[int], cases: list[str], results: Path) -> list[Trial]:
    """Return all requested launches; those in the results file are not repeated."""
    lines = results.read_text().splitlines() if results.exists() else []
    known = {trial_key(t): t for t in (Trial(**json.loads(line)) for line in lines)}
    every = [(name, world, str(p)) for name in cases for world in ranks for p in Precision]
    asked = [
        (*key, seed)
        for seed in range(seeds)
        for key in random.Random(seed).sample(every, len(every))
    ]
    with tempfile.TemporaryDirectory() as folder, results.open("a") as file:
        stand = Stand(Path(folder))
        for start in range(0, len(asked), TOGETHER):
            some = asked[start : start + TOGETHER]
            refused = {key[:3] for key, trial in known.items() if trial.refused}
            for made in tried(stand, [k for k in some if k not in known and k[:3] not in refused]):
                known[trial_key(made)] = made
                file.write(json.dumps(asdict(made)) + "\n")
                file.flush()
                if made.wrong:
                    print(f"  {trial_key(made)}: {made.wrong}", file=sys.stderr, flush=True)
        stand.bench.worlds.close()
    return [known[key] for key in asked if key in known]


def trial_key(trial: Trial) -> Key:
    """Return the key of a launch: case, ranks, precision and seed."""
    return trial.case, trial.ranks, trial.precision, trial.seed


def tried(stand: Stand, keys: list[Key]) -> Iterator[Trial]:
    """Describe the cases together, and train each case and its reference once."""
    specs = dict[Key, CaseSpec]()
    for key in keys:
        name, world, precision, seed = key
        site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
        with suppress(ScaleproofError):
            case = site.case(name, precision=Precision(precision), seed=seed)
            specs[key] = KNOWN.normalise(case)
    described = dict(zip(specs, stand.bench.describe(list(specs.values())), strict=True))
    for key in keys:
        name, world, precision, seed = key
        ratios = None
        if key in specs:
            with suppress(ScaleproofError):
                ratios = stand.ratios(specs[key], described[key])
        blank = Trial(
            case=name, ranks=world, precision=precision, seed=seed, refused=ratios is None
        )
        if ratios is None:
            yield blank
            continue
        yield replace(blank, **ratios._asdict())


def rows(every: list[Trial]) -> Iterator[str]:
    """Yield a row for each case, world size and precision."""
    yield "| case | ranks | precision | launches | step | block | check | reported |"
    yield "|---|---|---|---|---|---|---|---|"
    measured = [t for t in every if not t.refused]
    for (name, world, precision), of in itertools.groupby(
        sorted(measured, key=trial_key), key=lambda t: trial_key(t)[:3]
    ):
        alike = list(of)
        step = max(t.step for t in alike)
        block = max(t.block for t in alike)
        check = max(t.check for t in alike)
        wrong = sum(bool(t.wrong) for t in alike)
        row = f"| {name} | {world} | {precision} | {len(alike)} | {step:.2f}"
        yield f"{row} | {block:.2f} | {check:.2f} | {wrong} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = asked.results or Path(scratch) / "trials.jsonl"
        names = [name for part in asked.parts for name in PARTS[part]() if asked.only in name]
        every = trials(asked.seeds, asked.ranks, names, results)
    print("\n".join(rows(every)))
    launches = [t for t in every if not t.refused]
    wrong = [t for t in launches if t.wrong]
    most = beta.ppf(0.95, len(wrong) + 1, max(len(launches) - len(wrong), 1))
    print(
        f"{len(launches)} launches, {len(wrong)} reported as incorrect: at most {most:.2%} (95 %)"
    )
    sys.exit(int(bool(wrong)))
