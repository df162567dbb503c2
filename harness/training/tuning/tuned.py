"""Changes to the computation of a plain model, made before its strategy wraps it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from harness.cases import CaseSpec, Compiled, Precision
from harness.training.tuning import float8, kernels, recompute
from harness.training.tuning.recompute import Again


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The changes that ``tune`` made to a model.

    ``counts`` holds the counters of the checkpointed blocks, ``num_compiled`` is the number of
    compiled blocks, and ``num_narrow`` is the number of 8-bit layers.
    """

    counts: Sequence[Again] = ()
    num_compiled: int = 0
    num_narrow: int = 0


def untuned(case: CaseSpec) -> CaseSpec:
    """Return the case without compiled code and 8-bit products; its operators can be counted."""
    precision = Precision.FP32 if case.precision is Precision.FP8 else case.precision
    return replace(case, compiled=Compiled.NO, precision=precision)


def refuse(model: nn.Module, case: CaseSpec) -> None:
    """Raise ValueError if the model has no modules to which the changes of the case apply."""
    made = type(model).__name__
    if case.compiled is not Compiled.NO and not kernels.blocks(model):
        raise ValueError(
            f"compiled={case.compiled} is not supported: {made} has only modules of torch, which"
            " are not compiled"
        )
    if case.precision is Precision.FP8 and not float8.layers(model):
        raise ValueError(
            f"precision=fp8 is not supported: {made} has no linear layer whose widths are multiples"
            f" of {float8.TILE}"
        )


def tune(model: nn.Module, case: CaseSpec) -> Tuned:
    """Change the model in place so that it computes as the case states; return the changes."""
    return Tuned(
        num_narrow=float8.narrow(model) if case.precision is Precision.FP8 else 0,
        num_compiled=kernels.compiled(model, case.compiled)
        if case.compiled is not Compiled.NO
        else 0,
        counts=recompute.checkpointed(model, case) if case.checkpoint else (),
    )
