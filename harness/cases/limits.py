"""Limits for the difference between a loss and its reference that rounding alone can cause."""

from harness.cases.case import CaseSpec, Device, Mesh, Precision

#: Largest relative difference of a loss if 16-bit sums run in another order.
ROUNDED = 2e-2
#: Largest relative difference of a loss if fp32 sums run in another order.
ROUNDED_FP32 = 2e-5


def loss_limit(case: CaseSpec, mesh: Mesh) -> float:
    """Return the largest relative difference of a loss that is accepted: 0 if all sums have one
    order.
    """
    return 0.0 if case.device is Device.CPU and mesh.exact else rounding(case)


def rounding(case: CaseSpec) -> float:
    """Return the relative difference of a loss that sums in another order can cause."""
    return ROUNDED_FP32 if case.precision is Precision.FP32 else ROUNDED
