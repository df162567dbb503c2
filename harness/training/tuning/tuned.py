"""Changes that are made to a plain model before its strategy sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from harness.cases import CaseSpec, Compiled, Precision
from harness.training.tuning import float8, kernels, recompute
from harness.training.tuning.recompute import Again


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The counts of checkpointed blocks, and how many blocks are compiled, and layers in 8 bits."""

    counts: Sequence[Again] = ()
    num_compiled: int = 0
    num_narrow: int = 0


def untuned(case: CaseSpec) -> CaseSpec:
    """The case as its operators are counted on tensors without data."""
    precision = Precision.FP32 if case.precision is Precision.FP8 else case.precision
    return replace(case, compiled=Compiled.NO, precision=precision)


def refuse(model: nn.Module, case: CaseSpec) -> None:
    """ValueError for a model that has nothing which could be compiled, or computed in 8 bits."""
    made = type(model).__name__
    if case.compiled is not Compiled.NO and not kernels.blocks(model):
        raise ValueError(f"compiled={case.compiled}: {made} has only modules of torch's own")
    if case.precision is Precision.FP8 and not float8.layers(model):
        raise ValueError(f"precision=fp8: {made} has no linear layer whose sides are whole tiles")


def tune(model: nn.Module, case: CaseSpec) -> Tuned:
    """Make the model compute as the case says."""
    return Tuned(
        num_narrow=float8.narrow(model) if case.precision is Precision.FP8 else 0,
        num_compiled=kernels.compiled(model, case.compiled)
        if case.compiled is not Compiled.NO
        else 0,
        counts=recompute.checkpointed(model, case) if case.checkpoint else (),
    )
