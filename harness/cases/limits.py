"""Limits of the difference between a loss and its reference that rounding alone can cause."""

from harness.cases.case import CaseSpec, Device, Mesh, Precision

#: Largest relative difference of a loss if 16-bit sums are added in a different order.
ROUNDED = 2e-2
#: Largest relative difference of a loss if fp32 sums are added in a different order.
ROUNDED_FP32 = 2e-5


def loss_limit(case: CaseSpec, mesh: Mesh) -> float:
    """Return the largest accepted relative difference between a loss and its reference.

    The limit is 0 if both are computed with all sums in the same order.
    """
    return 0.0 if case.device is Device.CPU and mesh.exact else rounding(case)


def rounding(case: CaseSpec) -> float:
    """Return the relative difference of a loss that a different order of sums can cause."""
    return ROUNDED_FP32 if case.precision is Precision.FP32 else ROUNDED
