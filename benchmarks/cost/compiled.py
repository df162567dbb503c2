"""What compiled blocks cost a fresh process: to compile them, and to find them in Inductor's cache.

Each row is a process of its own over one empty cache: the first compiles, the others find. Seconds
are of CPU, since others may use the machine, and of the first step beyond the second one.

    python benchmarks/cost/compiled.py [--layers 24] [--again 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

CHILD = "--child"


def first_step_s(layers: int) -> float:
    """What the first step of a decoder with compiled blocks takes more than its second, of CPU."""
    import torch

    from harness.cases import Compiled
    from harness.training.models import decoder
    from harness.training.tuning import kernels

    torch.set_num_threads(1)
    size = {**decoder.SIZES["nano"], "layers": layers}
    model = decoder.build(size)
    kernels.compiled(model, Compiled.INDUCTOR)
    inputs, _ = decoder.batch(torch.arange(4), size)
    spent: list[float] = []
    for _ in range(2):
        before = time.process_time()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs).float().square().mean()
        loss.backward()
        spent.append(time.process_time() - before)
    return spent[0] - spent[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.child:
        print(first_step_s(parsed.layers))
        return
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, __file__, CHILD, "--layers", str(parsed.layers)]
        for number in range(1 + parsed.again):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            what = "found in the cache" if number else "compiled"
            print(f"{parsed.layers} blocks, {what:<20} {float(done.stdout):6.2f} s of CPU")


if __name__ == "__main__":
    main()
