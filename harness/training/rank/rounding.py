"""Trainings that round otherwise: how far honest launches of one case may differ.

A strategy may add in another order, split a product or fuse operators. Each changes results by some
roundings of the dtype they are computed in, and training makes of it what it does. So a replicate
multiplies what every layer gives, and every rank's gradients, by 1 + u eps, with u drawn from
[-1, 1) and eps that of the dtype.

A model that chooses, as a router does between experts, may choose otherwise where two values are
nearly equal, and each step from there on differs by far more than roundings. In fp32 that is rare:
one honest launch meets such a tie, and the replicates may meet none. So a replicate settles a tie
of each choice the other way, in the first step that has one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from harness.cases import CaseSpec, Compiled

#: Elements that are changed at a time: what is drawn for them takes memory, too.
AT_ONCE = 1 << 24
#: Values are tied that are closer than this to each other, relatively. Roundings of fp32 move them
#: by 1e-6 and more, but a small model has few values, of which none may be that close.
TIE = 2.0**-10


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

    def choosing(self) -> AbstractContextManager[object]:
        """Within it the model trains its next step."""
        return nullcontext()


class OtherRounding(Rounding):
    """A replicate. ``coarse``: what is computed or exchanged is cast to 16 bits on the way.

    Each rank has its own ``seed``; all settle the ``tie``-th closest tie the other way.
    """

    def __init__(self, device: torch.device, seed: int, *, coarse: bool, tie: int = 0) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._choices = _Choices(tie)
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

    def choosing(self) -> AbstractContextManager[object]:
        """A tie of each choice is settled the other way, in the first step that has one."""
        return nullcontext() if self._choices.settled() else self._choices

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


class _Choices(TorchFunctionMode):
    """Settles a tie of each ``topk`` and ``argmax`` the other way: the ``number``-th closest, so
    that a block that is computed once more in its backward pass chooses as it did.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._tied: list[Tensor] = []  # whether there was one, of each choice

    def settled(self) -> bool:
        """Whether a tie was found."""
        return any(map(bool, self._tied))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        given = args[0] if args else None
        if func not in (*_TOPK, *_ARGMAX) or not _ties(given) or options.keys() - _OPTIONS:
            return func(*args, **options)
        if func in _TOPK:
            return self._topk(given, *args[1:], **options)
        return self._argmax(given, *args[1:], **options)

    def _topk(
        self, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> torch.return_types.topk:
        indices = self._chosen(x if largest else -x, k, dim)
        return torch.return_types.topk((x.gather(dim, indices), indices))

    def _argmax(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            return self._chosen(x.flatten(), 1, 0)[0]
        indices = self._chosen(x, 1, dim)
        return indices if keepdim else indices.squeeze(dim)

    def _chosen(self, x: Tensor, k: int, dim: int) -> Tensor:
        """The places of the ``k`` largest values, in their order, but for a tie."""
        x = x.detach()
        if not 0 < k < x.size(dim):
            return x.topk(k, dim).indices
        values, indices = (part.movedim(dim, -1) for part in x.topk(k + 1, dim))
        last = values[..., -2].double()
        next_ = values[..., -1].double()
        apart = ((last - next_) / last.abs().clamp(min=torch.finfo(x.dtype).tiny)).flatten()
        row = apart.topk(min(self._number + 1, len(apart)), largest=False).indices[-1]
        rows = indices.reshape(-1, k + 1)
        chosen = rows[:, :k].clone()
        tied = apart[row] < TIE
        self._tied.append(tied)
        chosen[row, -1] = torch.where(tied, rows[row, k], rows[row, k - 1])
        return chosen.view(*indices.shape[:-1], k).movedim(-1, dim)


def _ties(x: object) -> TypeGuard[Tensor]:
    """Whether rounding may move values of this kind past each other."""
    return type(x) is Tensor and bool(x.dim() and x.numel()) and x.is_floating_point()


_OPTIONS = {"k", "dim", "largest", "sorted", "keepdim"}
_TOPK = (torch.topk, Tensor.topk)
_ARGMAX = (torch.argmax, Tensor.argmax)
