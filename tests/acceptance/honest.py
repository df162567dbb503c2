"""How far honest launches are off the reference, of what a launch may be: the table of
docs/trust.md.

    python tests/acceptance/honest.py [--seeds 20] [--ranks 2 3 4] [--only fsdp]

Every shipped strategy and codec in every precision that it has, trained for 32 steps. A row has the
largest difference of a step and of a block of steps, over their limits: an honest launch above 1
would be called wrong. Exit 1 if one was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

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
#: Models of codecs: few parameters, convolutions, gradients that are alike on all ranks.
CODED = ("mlp-nano", "decoder-nano", "resnet-nano", "paced-small")
KNOWN = Catalogue()


def names() -> Iterator[str]:
    """Strategy and model of every shipped strategy and codec; of some a knob that rounds."""
    for strategy in sorted(KNOWN.entries["strategies"]):
        if strategy not in FRAMEWORKS | {"compressed", "single"}:
            yield f"{strategy}/{MODELS.get(strategy, 'mlp-nano')}"
    for codec, entry in sorted(KNOWN.entries["compressors"].items()):
        if not entry.head.get("CONTROL"):
            # No gradient of the paced model comes to threshold's least magnitude: nothing is sent.
            models = CODED[:-1] if codec == "threshold" else CODED
            yield from (f"compressed:{codec}/{model}" for model in models)
    for model in ("decoder-nano", "moe-nano", "resnet-nano"):
        for strategy in ("ddp", "fsdp", "tensor_parallel", "pipeline"):
            yield f"{strategy}/{model}"


class Stand:
    """Trains the reference of a case, and the case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = Bench(KNOWN, KNOWN.get("engines", "local"), Where())

    def ratios(self, case: CaseSpec) -> tuple[float, float, str] | None:
        """Largest difference of a step and of a block, over its limit, and what is called wrong;
        None where the case is refused or nothing is compared.
        """
        described = self.bench.describe([case])[0]
        if described.reference is None or described.unsupported or described.error:
            return None
        if not described.reference.limit:
            return None
        arm = Arm(name="@", case=case, role=Role.SUBJECT)
        plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=Protocol(steps=STEPS, cut=2))
        reference = self._launch(plan, described, Purpose.REFERENCE)
        curve = references.curve(self.folder, [reference], {case.hash: described}, case.hash)
        assert curve is not None, reference.cause
        failed = [c for r in reference.ranks for c in r.checks if not c.ok]
        if failed:
            return 0.0, 0.0, f"{failed[0].name}: {failed[0].detail}, {failed[0].value}"
        timed = self._launch(plan, described, Purpose.TIMED, curve)
        assert timed.cause is None, timed.cause
        samples = [load_samples(self.folder, timed.launch, r) for r in timed.ranks]
        mine = references.mean_losses(samples)
        off = references.relative(mine, curve.losses[: len(mine)])
        steps = np.abs(off) / curve.limits(len(mine))
        blocks = references.block_rms(off) / curve.block_limits(len(mine))
        return float(steps.max()), float(blocks.max()), references.astray(samples, curve)

    def _launch(
        self,
        plan: Plan,
        described: Described,
        purpose: Purpose,
        curve: references.LossCurve | None = None,
    ) -> LaunchRecord:
        (arm,) = plan.arms
        order = Order(
            plan=plan,
            arm=arm,
            purpose=purpose,
            window=Window(steps=STEPS, cut=0 if purpose is Purpose.REFERENCE else 2),
            turn=0,
            reference=curve,
            replicates=references.REPLICATES,
        )
        return self.bench.launch(order, self.folder, described, lambda step: None)


def main(seeds: int, ranks: list[int], only: str) -> int:
    """The table."""
    wrong = 0
    print("| case | ranks | precision | launches | step | block | called wrong |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(Path(folder))
        for name in (n for n in names() if only in n):
            for world in ranks:
                site = Site(device=Device.CPU, backend="gloo", nodes=(world,))
                for precision in Precision:
                    seen = []
                    for seed in range(seeds):
                        with suppress(ScaleproofError):
                            asked = site.case(name, precision=precision, seed=seed)
                            if (ratios := stand.ratios(KNOWN.normalise(asked))) is not None:
                                seen.append(ratios)
                    if not seen:
                        continue
                    told = [why for _, _, why in seen if why]
                    wrong += len(told)
                    step = max(s for s, _, _ in seen)
                    block = max(b for _, b, _ in seen)
                    row = f"| {name} | {world} | {precision} | {len(seen)} | {step:.2f}"
                    print(f"{row} | {block:.2f} | {len(told)} |", flush=True)
                    for why in told[:1]:
                        print(f"  {why}", file=sys.stderr, flush=True)
        stand.bench.worlds.close()
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    sys.exit(main(asked.seeds, asked.ranks, asked.only))
