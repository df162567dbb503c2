"""Access the plain values of tensors of any kind: sharded, nested, sparse, quantized, complex."""

from collections.abc import Iterator

import torch
from torch import Tensor


def local(x: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor. Return any other tensor unchanged."""
    if type(x) is Tensor or not hasattr(x, "to_local"):
        return x
    part: Tensor = x.to_local()
    return part


def freed(x: Tensor) -> bool:
    """Return whether a tensor's memory was given back, as FSDP does with whole weights."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided
    if not plain or x.is_meta or not x.numel():
        return False
    try:
        return not x.untyped_storage().nbytes()
    except NotImplementedError:  # tensors within torch.func.grad and the like have no storage
        return False


def pieces(x: Tensor) -> Iterator[Tensor]:
    """Yield the plain strided tensors that make up a tensor of any kind, in a fixed order."""
    if hasattr(x, "__tensor_flatten__"):
        names, _ = x.__tensor_flatten__()
        for part in (getattr(x, name) for name in names):
            if isinstance(part, Tensor):  # other parts are not tensors, for example a mesh
                yield from pieces(part)
    elif x.layout is torch.strided and not x.is_nested:
        yield bits(x)
    else:
        yield rows(x)


def bits(x: Tensor) -> Tensor:
    """Return a strided tensor in a form whose elements can be viewed as integers of their size."""
    x = x.detach()
    if x.is_quantized:
        return x.int_repr()
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj().resolve_neg())
    return x.resolve_neg()


def rows(x: Tensor) -> Tensor:
    """Return a strided tensor (rows, ...) in which two rows differ if they differ in ``x``.

    It contains the elements of ``x``. Rows of unequal length are padded with zeros. A row of a
    sparse tensor becomes one number, a weighted sum over its stored values.
    """
    x = local(x).detach()
    if x.is_nested:
        parts = [bits(part).flatten() for part in x.unbind()]
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    if x.layout is torch.strided:
        return bits(x)
    if x.is_mkldnn:
        return x.to_dense()
    stored = x.to_sparse_coo().coalesce()
    first, *others = stored.indices()
    values = bits(stored.values()).reshape(len(first), -1).double().sum(1).view(torch.int64)
    column = torch.stack(others).sum(0) if others else torch.zeros_like(first)
    sums = values.new_zeros(len(x))
    return sums.index_add_(0, first, values * (2 * column + 1))[:, None]
