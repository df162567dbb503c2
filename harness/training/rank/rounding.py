"""Trainings that round otherwise: how far honest launches of one case may differ.

A strategy may add in another order, split a product or fuse operators. Each changes results by some
roundings of the dtype they are computed in, and training makes of it what it does. So a replicate
multiplies what every layer gives, and every rank's gradients, by 1 + u eps, with u drawn from
[-1, 1) and eps that of the dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.cases import CaseSpec, Compiled

#: Elements that are changed at a time: what is drawn for them takes memory, too.
AT_ONCE = 1 << 24


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
        """Eager: compiled layers round otherwise, too, and have no place for a hook.

        They also keep less for backward, so eager ones keep nothing and compute it again.
        """
        if case.compiled is Compiled.NO:
            return case
        again = not case.offload
        return replace(
            case, compiled=Compiled.NO, checkpoint=again, checkpoint_every=1, selective=False
        )

    def watch(self, model: nn.Module) -> None:
        """Change what each layer with weights of its own gives."""

        def changed(_: nn.Module, __: object, out: object) -> object:
            if isinstance(out, Tensor) and out.is_floating_point():
                return _Changed.apply(out, self._changed)  # type: ignore[no-untyped-call]
            return out

        for module in model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_hook(changed)

    def gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each rounded in its own way."""
        return [self._changed(gradient) for gradient in gradients]

    def _changed(self, x: Tensor) -> Tensor:
        eps = max(self._eps, torch.finfo(x.dtype).eps)
        flat = x.reshape(-1)
        made = torch.empty_like(flat)
        for given, taken in zip(flat.split(AT_ONCE), made.split(AT_ONCE), strict=True):
            errors = torch.empty(given.shape, dtype=torch.float32, device=x.device)
            errors.uniform_(-eps, eps, generator=self._generator)
            torch.addcmul(given, given, errors, out=taken)
        return made.view(x.shape)


class _Changed(torch.autograd.Function):
    """Changes what passes, forwards and backwards, and keeps nothing for it.

    Were it a product, as it is on the way, every layer would keep its factors in fp32: a training
    that fits its device would not fit as a replicate.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return change(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradient), None
