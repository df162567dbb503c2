"""Measure the ceilings of a rank's device: a large matrix product and a large copy.

The measurement takes a second or two in a separate world of one rank. Training speeds are then
compared with what the device really reaches, and not with its data sheet. The operations run back
to back, because clocks in the first milliseconds are higher than any training sustains. Their
inputs are normal random numbers, because constant matrices need less power and run faster (Horace
He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given Predictable Data", 2024).
"""

import statistics
import time
from collections.abc import Callable

import torch

from harness.cases import CaseSpec
from harness.record import Ceiling
from harness.training.accelerator import Accelerator
from harness.training.tuning import float8

#: Number of rows of the square matrices, and number of bytes that are copied. The first entry is
#: for a CPU core, the second for an accelerator.
ROWS = (1024, 8192)
COPIED = (64 << 20, 1 << 30)
#: Seconds for which each operation is repeated on a CPU core and on an accelerator. An accelerator
#: needs longer, because its clocks must settle.
LASTS_S = (0.2, 1.0)
#: Number of parts into which that time is divided; the result is the median over the parts.
PARTS = 5


def ceiling(accelerator: Accelerator, case: CaseSpec) -> Ceiling:
    """Measure the FLOP/s of a matrix product and the B/s of a copy within the device's memory.

    The product is computed in the case's dtype. Each copied byte counts twice: it is read and
    written.
    """
    dtype = torch.float32 if case.tf32 else getattr(torch, case.dtype)
    rows = ROWS[accelerator.present]
    copied = COPIED[accelerator.present]
    a = torch.randn(rows, rows, device=accelerator.device).to(dtype)
    narrow = dtype is float8.FORWARD
    product = torch.empty_like(a, dtype=torch.bfloat16 if narrow else dtype)
    source = torch.randint(255, (copied,), dtype=torch.uint8, device=accelerator.device)
    target = torch.empty_like(source)

    def multiply() -> object:
        return float8.product(a, a.t(), product.dtype) if narrow else torch.mm(a, a, out=product)

    product_s = _steady_s(multiply, accelerator)
    copy_s = _steady_s(lambda: target.copy_(source), accelerator)
    return Ceiling(
        dtype=case.dtype,
        matmul_flops=2 * rows**3 / product_s,
        copy_bps=2 * copied / copy_s,
    )


def _steady_s(work: Callable[[], object], accelerator: Accelerator) -> float:
    """Return the seconds that one call of ``work`` takes when calls run back to back.

    The result is the median over several parts of the measured time. One call before the
    measurement is a warm-up.
    """

    def taken_s(count: int) -> float:
        accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            work()
        accelerator.synchronize()
        return time.perf_counter() - began

    taken_s(1)
    once = taken_s(1)
    count = max(1, round(LASTS_S[accelerator.present] / PARTS / once))
    return statistics.median(taken_s(count) / count for _ in range(PARTS))
