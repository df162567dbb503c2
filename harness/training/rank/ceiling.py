"""The ceilings of a rank's device, as it is: one large matrix product, and one large copy.

A second or two in a world of its own, so that speeds can be held against what the device really
does, whatever its data sheet says. Back to back and on normal random numbers: matrices of ones need
less power, and the first milliseconds run at clocks that no training holds (Horace He, "Strangely,
Matrix Multiplications on GPUs Run Faster When Given Predictable Data", 2024).
"""

import statistics
import time
from collections.abc import Callable

import torch

from harness.cases import CaseSpec
from harness.record import Ceiling
from harness.training.accelerator import Accelerator
from harness.training.tuning import float8

#: Rows of the square matrices, and bytes that are copied: on a CPU's core, on a device.
ROWS = (1024, 8192)
COPIED = (64 << 20, 1 << 30)
#: How long a kind of work goes on, in s: on a CPU's core, on a device, whose clocks settle by then.
LASTS_S = (0.2, 1.0)
#: Of so many parts of that time the median counts.
PARTS = 5


def ceiling(accelerator: Accelerator, case: CaseSpec) -> Ceiling:
    """FLOP/s of a matrix product in the dtype that the case computes in, and B/s of a copy within
    the device's memory, each byte read and written.
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
    """Seconds of one of many, back to back, in the median of several parts; the first warms up."""

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
