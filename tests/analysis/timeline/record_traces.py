"""Record the traces of ``recorded/``: two gloo ranks of every strategy family, three steps each.

    python tests/analysis/timeline/record_traces.py

Run it only if the files that ranks write have changed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site, Window
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Purpose

HERE = Path(__file__).parent / "recorded"
CASES = {
    "ddp": ("ddp/paced-small", {}),
    "fsdp": ("fsdp/paced-small", {}),
    "gpipe": ("pipeline/paced-small", {"pipeline.microbatches": 4}),
    "1f1b": ("pipeline/paced-small", {"pipeline.microbatches": 4, "pipeline.schedule": "1f1b"}),
    "compressed": ("compressed:topk/paced-small", {}),
}


def main() -> None:
    """Record one launch of each case."""
    known = Catalogue()
    launcher = Bench(known, known.get("engines", "local"), Where())
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    HERE.mkdir(exist_ok=True)
    try:
        for name, (head, knobs) in CASES.items():
            case = known.normalise(site.case(head, knobs={"paced.step_ms": 20.0, **knobs}))
            arm = Arm(name="@2", case=case, role=Role.SUBJECT)
            protocol = Protocol(steps=4, cut=2)
            plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=protocol)
            window = Window(steps=8, cut=2, profiled=3)
            order = Order(plan=plan, arm=arm, purpose=Purpose.PROFILE, window=window, turn=0)
            (described,) = launcher.describe([case])
            with tempfile.TemporaryDirectory() as folder:
                launch = launcher.launch(order, Path(folder), described, lambda step: None)
                assert launch.budget is not None, launch.wrong or launch.cause
                left = Path(folder) / "launches" / launch.launch
                for rank in range(2):
                    trace = left / f"rank{rank}.trace.json.gz"
                    shutil.copy(trace, HERE / f"{name}-rank{rank}.json.gz")
    finally:
        launcher.worlds.close()


if __name__ == "__main__":
    main()
