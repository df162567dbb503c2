"""Replicates: reference training runs with other rounding errors.

Replicates show how far correct launches of one case may differ. A strategy may add in a different
order, split a product or fuse operators. Each of these changes a result by a few rounding errors of
its dtype, and further training steps may enlarge the difference. A replicate therefore multiplies
the output of every layer, and the gradients of every rank, by 1 + u eps. Here u is drawn from
[-1, 1), and eps is the machine epsilon of the dtype.

A model that makes discrete choices, such as a router between experts, may choose differently if two
values are nearly equal (a tie). All later steps then differ by far more than rounding errors. In
fp32 such a tie is rare: one correct launch may have one although no replicate has. A replicate
therefore decides one tie of each choice the other way, in the first step that has a tie.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from harness.cases import CaseSpec, Compiled

#: Number of elements that are changed in one operation. It limits the memory for random numbers.
AT_ONCE = 1 << 24
#: Two values are tied if their relative difference is smaller than this. Rounding in fp32 changes
#: values by 1e-6 and more. The limit is larger, because a small model has so few values that no two
#: of them may be that close.
TIE = 2.0**-10


class Rounding:
    """The rounding of the reference. This base class changes nothing."""

    def case(self, case: CaseSpec) -> CaseSpec:
        """Return the case from which the model is built."""
        return case

    def watch(self, model: nn.Module) -> None:
        """Add this rounding to a model. The reference's model needs no change."""

    def gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients that this rank sends to the other ranks."""
        return gradients

    def choosing(self) -> AbstractContextManager[object]:
        """Return a context for the next training step, in which the model makes its choices."""
        return nullcontext()


class OtherRounding(Rounding):
    """The rounding of a replicate.

    ``coarse`` is set if the strategy casts values that it computes or exchanges to 16 bits. The
    errors then have the size of rounding errors in bfloat16. Each rank has a different ``seed``. In
    each choice, the ``tie``-th closest tie (counted from 0) is decided the other way, or none if
    ``tie`` is None.
    """

    def __init__(
        self, device: torch.device, seed: int, *, coarse: bool, tie: int | None = 0
    ) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._choices = None if tie is None else _Choices(tie)
        self._eps = torch.finfo(torch.bfloat16).eps if coarse else 0.0

    def case(self, case: CaseSpec) -> CaseSpec:
        """Return the case without compilation.

        Compiled layers round differently, too, and cannot have the hooks of ``watch``. They also
        keep fewer activations than eager layers. If the case is compiled and does not offload
        activations, the eager layers therefore recompute them in the backward pass.
        """
        if case.compiled is Compiled.NO:
            return case
        again = not case.offload
        return replace(
            case, compiled=Compiled.NO, checkpoint=again, checkpoint_every=1, selective=False
        )

    def watch(self, model: nn.Module) -> None:
        """Add a hook that changes the output of each module which directly owns parameters."""

        def changed(_: nn.Module, __: object, out: object) -> object:
            if isinstance(out, Tensor) and out.is_floating_point():
                return _Changed.apply(out, self._changed)  # type: ignore[no-untyped-call]
            return out

        for module in model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_hook(changed)

    def gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients with a random relative error in each element."""
        return [self._changed(gradient) for gradient in gradients]

    def choosing(self) -> AbstractContextManager[object]:
        """Return a context that decides one tie of each choice the other way.

        After the first step that has a tie, the context does nothing.
        """
        if self._choices is None or self._choices.settled():
            return nullcontext()
        return self._choices

    def _changed(self, x: Tensor) -> Tensor:
        """Return ``x`` times 1 + u eps, with u drawn for each element from [-1, 1)."""
        eps = max(self._eps, torch.finfo(x.dtype).eps)
        flat = x.reshape(-1)
        made = torch.empty_like(flat)
        for given, taken in zip(flat.split(AT_ONCE), made.split(AT_ONCE), strict=True):
            errors = torch.empty(given.shape, dtype=torch.float32, device=x.device)
            errors.uniform_(-eps, eps, generator=self._generator)
            torch.addcmul(given, given, errors, out=taken)
        return made.view(x.shape)


class _Changed(torch.autograd.Function):
    """An autograd function that changes activations and gradients without saving any tensor.

    A differentiable product would save its factors in fp32 for every layer. The replicate of a
    training run that just fits its device would then need too much memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the changed activation."""
        ctx.change = change
        return change(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the changed gradient."""
        return ctx.change(gradient), None


class _Choices(TorchFunctionMode):
    """A torch function mode that decides one tie of each ``topk`` and ``argmax`` the other way.

    It is always the ``number``-th closest tie of a call. A block that is recomputed in the backward
    pass therefore makes the same choices as in the forward pass.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._tied: list[Tensor] = []  # for each choice, whether there was a tie

    def settled(self) -> bool:
        """Return whether a tie was found."""
        return any(map(bool, self._tied))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ``topk`` and ``argmax`` of floating-point tensors, and run all else unchanged."""
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
        """Return what ``torch.topk`` returns, with one tie decided the other way."""
        indices = self._chosen(x if largest else -x, k, dim)
        return torch.return_types.topk((x.gather(dim, indices), indices))

    def _argmax(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Return what ``torch.argmax`` returns, with one tie decided the other way."""
        if dim is None:
            return self._chosen(x.flatten(), 1, 0)[0]
        indices = self._chosen(x, 1, dim)
        return indices if keepdim else indices.squeeze(dim)

    def _chosen(self, x: Tensor, k: int, dim: int) -> Tensor:
        """Return the indices of the ``k`` largest values along ``dim``, with one exception.

        In the row with the ``number``-th smallest gap between the k-th and the next value, the next
        value takes the place of the k-th if the two are tied.
        """
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
    """Return whether ``x`` is a plain floating-point tensor, whose values rounding may reorder."""
    return type(x) is Tensor and bool(x.dim() and x.numel()) and x.is_floating_point()


_OPTIONS = {"k", "dim", "largest", "sorted", "keepdim"}
_TOPK = (torch.topk, Tensor.topk)
_ARGMAX = (torch.argmax, Tensor.argmax)
