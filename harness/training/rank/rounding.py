"""Trainings that round otherwise: how far honest launches of one case may differ.

A strategy may add in another order, split a product or fuse operators. Each changes results by some
roundings of the dtype they are computed in, and training makes of it what it does. So a replicate
multiplies what every layer gives, and every rank's gradients, by 1 + u eps, with u drawn from
[-1, 1) and eps that of the dtype.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from harness.cases import CaseSpec, Compiled


class Rounding:
    """The reference itself."""

    def case(self, case: CaseSpec) -> CaseSpec:
        """The case that is built."""
        return case

    def watch(self, model: nn.Module) -> None:
        """Nothing is changed."""

    def gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradients that this rank hands out."""
        return gradients


class OtherRounding(Rounding):
    """A replicate. ``coarse``: what is computed or exchanged is cast to 16 bits on the way."""

    def __init__(self, device: torch.device, seed: int, *, coarse: bool) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._eps = torch.finfo(torch.bfloat16).eps if coarse else 0.0

    def case(self, case: CaseSpec) -> CaseSpec:
        """Eager: compiled layers round otherwise, too, and have no place for a hook."""
        return replace(case, compiled=Compiled.NO)

    def watch(self, model: nn.Module) -> None:
        """Change what each layer with weights of its own gives."""

        def changed(_: nn.Module, __: object, out: object) -> object:
            if isinstance(out, Tensor) and out.is_floating_point():
                return self._changed(out)
            return out

        for module in model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_hook(changed)

    def gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each rounded in its own way."""
        return [self._changed(gradient) for gradient in gradients]

    def _changed(self, x: Tensor) -> Tensor:
        eps = max(self._eps, torch.finfo(x.dtype).eps)
        drawn = torch.rand(x.shape, generator=self._generator, device=x.device)
        return (x.float() * (1 + eps * (2 * drawn - 1))).to(x.dtype)
