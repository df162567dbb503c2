"""Measure the cost of compiled blocks in a fresh process, without and with Inductor's cache.

Each row is a separate process. The first two compile with an empty cache: one plainly, the other
like a correctness check, which records who asks for the world size. The other processes find the
compiled blocks in the cache. Some of them import Inductor before the measurement, as the ranks of
an agent do. The result is the CPU time of the first step minus that of the second, because other
processes may use the machine.

    python benchmarks/cost/compiled.py [--layers 24] [--again 3]
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext

CHILD, PLAIN, NOTED, IMPORTED = "--child", "plain", "noted", "imported"


def first_step_s(layers: int, how: str) -> float:
    """Return the CPU time (s) by which the first step of a compiled decoder exceeds the second."""
    import torch

    from harness.cases import Compiled
    from harness.training.models import decoder
    from harness.training.rank.gate_checks import WorldSizeQueries
    from harness.training.tuning import kernels

    if how == IMPORTED:
        importlib.import_module("torch._inductor.compile_fx")
    torch.set_num_threads(1)
    size = {**decoder.SIZES["nano"], "layers": layers}
    model = decoder.build(size)
    kernels.compiled(model, Compiled.INDUCTOR)
    inputs, _ = decoder.batch(torch.arange(4), size)
    spent: list[float] = []
    for _ in range(2):
        before = time.process_time()
        asked = WorldSizeQueries(decoder.__file__, []).noted() if how == NOTED else nullcontext()
        with asked, torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs).float().square().mean()
        loss.backward()
        spent.append(time.process_time() - before)
    return spent[0] - spent[1]


def child(layers: int, how: str, cache: str) -> float:
    """Return the result of ``first_step_s`` in a separate process that uses this cache."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    command = [sys.executable, __file__, CHILD, how, "--layers", str(layers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument(CHILD, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.child:
        print(first_step_s(parsed.layers, parsed.child))
        return
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        rows = [("compiled", PLAIN, cache), ("compiled in a gate", NOTED, other)]
        rows += [("found in the cache", PLAIN, cache)] * parsed.again
        rows += [("found by an agent's rank", IMPORTED, cache)] * parsed.again
        for what, how, folder in rows:
            seconds = child(parsed.layers, how, folder)
            print(f"{parsed.layers} blocks, {what:<24} {seconds:6.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
