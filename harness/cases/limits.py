"""How far a loss may be from its reference's, by arithmetic alone."""

from harness.cases.case import CaseSpec, Device, Mesh, Precision

#: Sums in another order, in 16 bits.
ROUNDED = 2e-2
#: The same in fp32.
ROUNDED_FP32 = 2e-5


def loss_limit(case: CaseSpec, mesh: Mesh) -> float:
    """Largest relative difference of a loss: 0 where sums have one order."""
    return 0.0 if case.device is Device.CPU and mesh.exact else rounding(case)


def rounding(case: CaseSpec) -> float:
    """Relative difference of a loss by sums in another order."""
    return ROUNDED_FP32 if case.precision is Precision.FP32 else ROUNDED
