"""The ceilings of a rank's device, as it is: one large matrix product, and one large copy.

A few hundred milliseconds in a world of its own, so that speeds can be held against what the
device really does, whatever its data sheet says.
"""

import time
from collections.abc import Callable

import torch

from harness.record import Ceiling
from harness.spec import CaseSpec
from harness.training.accelerator import Accelerator
from harness.training.tuning import float8

#: Rows of the square matrices, and bytes that are copied: on a CPU's core, on a device.
ROWS, COPIED = (1024, 8192), (64 << 20, 1 << 30)
#: The best of so many counts: a ceiling is what is reached when nothing is in the way.
TRIES = 5
#: No more tries after so many seconds: a CPU that has no instructions for a dtype takes long.
ENOUGH_S = 2.0


def ceiling(accelerator: Accelerator, case: CaseSpec) -> Ceiling:
    """FLOP/s of a matrix product in the dtype that the case computes in, and B/s of a copy within
    the device's memory, each byte read and written.
    """
    dtype = torch.float32 if case.tf32 else getattr(torch, case.dtype)
    rows, copied = ROWS[accelerator.present], COPIED[accelerator.present]
    a = torch.ones(rows, rows, device=accelerator.device).to(dtype)
    narrow = dtype is float8.FORWARD
    out = torch.empty_like(a, dtype=torch.bfloat16 if narrow else dtype)
    source = torch.ones(copied, dtype=torch.uint8, device=accelerator.device)
    target = torch.empty_like(source)

    def multiply() -> object:
        return float8.product(a, a.t(), out.dtype) if narrow else torch.mm(a, a, out=out)

    product_s = _best_s(multiply, accelerator)
    copy_s = _best_s(lambda: target.copy_(source), accelerator)
    return Ceiling(
        dtype=case.dtype, matmul_flops=2 * rows**3 / product_s,
        copy_bps=2 * copied / copy_s,
    )  # fmt: skip


def _best_s(work: Callable[[], object], accelerator: Accelerator) -> float:
    """Seconds of the fastest of several; the first one only warms up."""
    best, started = float("inf"), time.perf_counter()
    for attempt in range(TRIES + 1):
        if time.perf_counter() - started > ENOUGH_S and attempt > 1:
            break
        accelerator.synchronize()
        began = time.perf_counter()
        work()
        accelerator.synchronize()
        if attempt:
            best = min(best, time.perf_counter() - began)
    return best
