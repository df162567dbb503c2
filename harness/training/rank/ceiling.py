"""The ceilings of a rank's device, as it is: one large matrix product, and one large copy.

A few hundred milliseconds in a world of its own, so that speeds can be held against what the
device really does, whatever its data sheet says.
"""

import time
from collections.abc import Callable

import torch

from harness.record import Ceiling
from harness.spec import Precision
from harness.training.accelerator import Accelerator

#: Rows of the square matrices, and bytes that are copied: on a CPU's core, on a device.
ROWS, COPIED = (1024, 8192), (64 << 20, 1 << 30)
#: The best of so many counts: a ceiling is what is reached when nothing is in the way.
TRIES = 5


def ceiling(accelerator: Accelerator, precision: Precision) -> Ceiling:
    """FLOP/s of a matrix product in the dtype that cases of this precision compute in, and B/s of a
    copy within the device's memory, each byte read and written.
    """
    dtype = torch.float32 if precision is Precision.FP32 else torch.bfloat16
    rows, copied = ROWS[accelerator.present], COPIED[accelerator.present]
    a = torch.ones(rows, rows, dtype=dtype, device=accelerator.device)
    out = torch.empty_like(a)
    source = torch.ones(copied, dtype=torch.uint8, device=accelerator.device)
    target = torch.empty_like(source)
    product_s = _best_s(lambda: torch.mm(a, a, out=out), accelerator)
    copy_s = _best_s(lambda: target.copy_(source), accelerator)
    return Ceiling(
        dtype=str(dtype).removeprefix("torch."), matmul_flops=2 * rows**3 / product_s,
        copy_bps=2 * copied / copy_s,
    )  # fmt: skip


def _best_s(work: Callable[[], object], accelerator: Accelerator) -> float:
    """Seconds of the fastest of several; the first one only warms up."""
    best = float("inf")
    for attempt in range(TRIES + 1):
        accelerator.synchronize()
        began = time.perf_counter()
        work()
        accelerator.synchronize()
        if attempt:
            best = min(best, time.perf_counter() - began)
    return best
