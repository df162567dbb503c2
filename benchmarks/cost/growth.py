"""Compare the memory growth of FSDP2 over gloo in a plain loop and in scaleproof.

Only growth beyond that of the plain loop is caused by scaleproof. The output is the growth in bytes
per step (least squares over the kept steps) of the rank that grows fastest.

    python benchmarks/cost/growth.py [--steps 200] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from harness.base.stats import slope
from harness.record import RunRecord
from harness.record.store import load
from harness.training.accelerator import Accelerator
from harness.training.models import decoder
from harness.training.observe.memory import Memory

SIZE = "nano"
RANKS = 2
RECIPE = """
from harness import Protocol, ladder
def long(site):
    fast = Protocol(steps={steps}, cut={cut}, min_blocks=1, max_blocks=1)
    return [ladder(site.case("fsdp/decoder-{size}"), ({ranks},), protocol=fast)]
"""


def bare(rank: int, steps: int, folder: str) -> None:
    """Train one rank of plain FSDP2, without scaleproof, with the same model and batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    size = decoder.SIZES[SIZE]
    model = decoder.build(size)
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in (*model.children(), model):
        fully_shard(block, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng, seen = torch.Generator().manual_seed(rank), list[float]()
    memory = Memory(Accelerator(torch.device("cpu")))
    for _ in range(steps):
        text = torch.randint(size["vocab"], (size["batch"], size["seq"] + 1), generator=rng)
        loss = decoder.loss(model(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(float(memory.now()))
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def grown_bare(steps: int, cut: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(bare, (steps, folder), nprocs=RANKS)
        looks = [json.loads(p.read_text()) for p in Path(folder).glob("rank*.json")]
    return max(slope(values[cut:]).mean for values in looks)


def grown_here(steps: int, cut: int) -> float:
    """Return the growth of the median launch of a scaleproof run, in bytes per step."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "long.py")
        recipe.write_text(RECIPE.format(steps=steps, cut=cut, size=SIZE, ranks=RANKS))
        command = [sys.executable, "-m", "harness", "run", f"{recipe}::long", f"--cpus={RANKS}"]
        more = ["--no-fabric", "--no-timeline", f"--results={folder}", "--json"]
        subprocess.run([*command, *more], stdout=subprocess.DEVNULL, check=False)
        (path,) = Path(folder).glob("runs/*/*/record.json")
        run: RunRecord = load(path.parent)
    timed = [x for x in run.launches if x.arm == f"@{RANKS}" and x.growth and x.steps]
    return median(x.growth.slope for x in timed if x.growth)


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    cut = parsed.steps // 2  # warm-up steps, in which allocators still grow
    by_engine = {
        "bare": grown_bare(parsed.steps, cut), "harness": grown_here(parsed.steps, cut),
    }  # fmt: skip
    if parsed.json:
        print(json.dumps(by_engine))
        return
    print(f"fsdp/decoder-{SIZE} on {RANKS} CPU ranks, steps {cut} to {parsed.steps}")
    for name, rate in by_engine.items():
        print(f"{name:<8} {rate / 1e3:8.1f} kB a step")


if __name__ == "__main__":
    main()
