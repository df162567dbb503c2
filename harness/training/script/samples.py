"""Find the samples that reach a training: count and hash the rows of its modules' inputs.

The tensors of a call have one row for each sample. Only a limited number of evenly spaced elements
of a row is hashed, so that a large row, such as an image, takes no longer than a row of tokens.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.training.observe import tensor_values
from harness.training.observe.intake import row_hashes
from harness.training.script.graphs import Graphs, apart, graphs, nodes

#: Largest number of elements that are hashed in each row, and of tensors that are hashed in each
#: call.
ELEMENTS = 1024
MOST_TENSORS = 8
_FIRST = 4096
#: Two batches differ in work if the ratio of the numbers of elements in their rows is below this.
RAGGED = 0.95


def tensors(*values: Any, depth: int = 4, inside: bool = False) -> Iterator[Tensor]:
    """Yield the non-empty tensors in the arguments of a call in order, also if they are nested.

    With ``inside``, the attributes of objects are searched, too.
    """
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() and value.numel():
                yield value
            continue
        parts: Sequence[Any] = ()
        if isinstance(value, Mapping):
            parts = [*value.values()]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            parts = value[:8]
        elif inside and _is_opaque(value):
            parts = [*vars(value).values()]
        if depth and parts:
            yield from tensors(*parts, depth=depth - 1, inside=inside)


#: Types whose attributes ``tensors`` does not search: it handles them in another way, or they hold
#: no input of a call.
_KNOWN = (Tensor, Mapping, Sequence, nn.Module, type)


def _is_opaque(value: object) -> bool:
    """Return whether ``value`` is of a user's class, such as NestedTensor in detection code."""
    return hasattr(value, "__dict__") and not isinstance(value, _KNOWN)


def _of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a call. Search attributes of objects only if there are no others."""
    of_call = tensors(args, kwargs)
    first = next(of_call, None)
    return (
        tensors(args, kwargs, inside=True) if first is None else itertools.chain([first], of_call)
    )


def trains(output: object, depth: int = 4) -> bool | None:
    """Return whether any output of a module requires a gradient, or None if it has no tensor."""
    if isinstance(output, Tensor):
        return output.requires_grad
    parts: Sequence[object] = ()
    if depth and isinstance(output, Mapping):
        parts = list(output.values())
    elif depth and isinstance(output, Sequence) and not isinstance(output, str | bytes):
        parts = output
    answers = {trains(part, depth - 1) for part in parts} - {None}
    return True in answers if answers else None


def first_input(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, leaves: bool = False, made: bool = False
) -> Tensor | None:
    """Return the first tensor of a call, or None if there is none or another module computed it.

    With ``leaves``, a leaf that requires a gradient is accepted, such as the coordinates of a
    differential equation. If the training uses a loader, such a leaf must not be accepted: it is an
    adversarial perturbation of samples that also arrive unchanged. With ``made``, a computed tensor
    is accepted. This is correct only if no module has had samples so far, because no module can
    have computed the tensor from samples then.
    """
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim():
        first = next(_of_call(args, kwargs), None)
    if first is None or not first.requires_grad:
        return first
    is_place = leaves and first.grad_fn is None
    return first if (made or is_place) and not isinstance(first, nn.Parameter) else None


def continues(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call receives outputs of another module in addition to samples.

    Examples are a decoder that gets the encoder's states with the tokens, and a loss module with
    weights that gets a model's output with the batch.
    """
    return any(tensor.grad_fn is not None for tensor in tensors(args, kwargs))


# Objects of this class are created in every step. A frozen class would take ten times as long.
@dataclass(slots=True, kw_only=True)
class BatchLayout:
    """The number of samples in a call of a module, and their layout in its arguments.

    ``count`` is the number of samples. They are rows of tensors, elements of a list (``listed``),
    columns of a tensor whose first dimension is time (``late``), or ``graphs`` with many rows each.
    ``elements`` is the number of elements in the first tensor, or in the first tensors of all
    listed samples. ``unclear`` states why the layout is ambiguous.
    """

    count: int = 0
    elements: int = 0
    listed: bool = False
    late: bool = False
    graphs: Graphs | None = None
    unclear: str = ""


def arrived(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: Collection[int],
    *,
    late: bool = False,
    batches: Collection[Graphs] = (),
    made: bool = False,
) -> BatchLayout | None:
    """Return the samples of a call, or None if it has no tensor or another module computed it.

    Args:
        sizes: the sizes of the batches that loaders handed out last.
        late: whether an inner layer gets this input unchanged and treats the first dimension as
            time.
        batches: the batches of graphs that loaders handed out last.
        made: whether a computed tensor counts as samples, because no module has had samples.
    """
    known = {*sizes} - {0}
    first = first_input(args, kwargs, leaves=not known, made=made)
    if first is None:
        return None
    if first.is_nested:
        return BatchLayout(count=first.size(0), elements=first.numel())
    first = tensor_values.local(first)
    elements = first.numel()
    given = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(given, list | tuple) and given:
        others = [x for x in (*args, *kwargs.values()) if x is not given]
        return _of_list(given, others, known)
    rows, columns = (*first.shape, 0)[:2]
    whole = None if isinstance(given, Tensor) else graphs(given)
    for of_graphs in batches if whole is None else [whole]:
        if (of_nodes := nodes(_of_call(args, kwargs), of_graphs)) is not None:
            return BatchLayout(count=of_graphs.count, elements=of_nodes.numel(), graphs=of_graphs)
    if columns and not known and (late or _has_lengths(tensors(args, kwargs), rows, columns)):
        return BatchLayout(count=columns, elements=elements, late=True)
    within = given is not first and _is_opaque(given) and next(tensors(args, kwargs), None) is None
    if within and rows not in known:
        kind = type(given).__name__
        shape = _shape(first)
        return BatchLayout(
            unclear=f"it is unclear whether each row of {shape} in a {kind} is a sample"
        )
    if not known or rows in known or columns not in known:
        return BatchLayout(count=rows, elements=elements)
    size = columns
    if rows % size and size % rows:
        return BatchLayout(count=size, elements=elements, late=True)
    return BatchLayout(
        unclear=f"a batch of {size} reaches the model as {_shape(first)}: it is unclear which"
        " dimension is the batch"
    )


def _has_lengths(others: Iterator[Tensor], rows: int, columns: int) -> bool:
    """Return whether an integer vector has one element for each column but not one for each row.

    The vector then holds the lengths of sequences whose first dimension is time.
    """
    vectors = (x for x in others if x.dim() == 1 and not x.is_floating_point())
    sizes = {len(vector) for vector in vectors}
    return rows != columns and columns in sizes and rows not in sizes


def _of_list(given: Sequence[Any], others: Sequence[Any], known: Collection[int]) -> BatchLayout:
    """Return the layout of a list. It holds either the samples of a batch or several inputs."""
    many = len(given)
    firsts = [first for x in given if (first := next(tensors(x), None)) is not None]
    elements = sum(first.numel() for first in firsts)
    if any(isinstance(x, Mapping) for x in given):
        rows = {len(first) for first in firsts}
        if len(rows) == 1 and rows <= set(known) and many not in known:
            # The list holds several inputs of each sample, for example the two sides of pairs.
            return BatchLayout(count=rows.pop(), elements=elements)
        return BatchLayout(count=many, elements=elements, listed=True)
    parts = [x for x in given if isinstance(x, Tensor) and x.dim()]
    heads = {len(part) for part in parts}
    if not parts and many in known:
        return BatchLayout(count=many, listed=True)
    if not parts:
        kind = type(given[0]).__name__
        return BatchLayout(
            unclear=f"the model gets a list of {many} of {kind}: these may be samples or inputs"
        )
    if heads <= set(known):
        return BatchLayout(count=len(parts[0]), elements=elements)
    beside = any(isinstance(other, list | tuple) and len(other) == many for other in others)
    if many in known or (len(heads) > 1 and len(parts) == many) or (beside and not known):
        return BatchLayout(count=many, elements=elements, listed=True)
    if isinstance(given, tuple) and len(heads) == 1 and not known:
        return BatchLayout(count=len(parts[0]), elements=elements)
    shape = _shape(parts[0])
    return BatchLayout(
        unclear=f"the model gets a list of {many} tensors {shape}: these may be samples or inputs"
    )


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def inputs(args: Sequence[Any], kwargs: Mapping[str, Any], how: BatchLayout) -> Sequence[Tensor]:
    """Return the tensors that identify the samples of a call, with one row for each sample.

    These are the first tensor and all integer tensors with the same number of rows. If the first
    tensor holds integers, the first floating-point tensor is added. The first integer tensor may be
    a mask or an action that is equal for many samples, and tokens or observations may follow it.
    """
    if how.graphs is not None:
        return [_stacked(part) for part in apart(_of_call(args, kwargs), how.graphs)]
    if how.listed:
        given = args[0] if args else next(iter(kwargs.values()))
        firsts = (next(tensors(x), None) for x in given)
        return [_stacked([tensor for tensor in firsts if tensor is not None])]
    candidates = itertools.islice(_of_call(args, kwargs), MOST_TENSORS)
    first = next(candidates)  # it exists, because ``first_input`` has found it
    if how.late:
        return [tensor_values.rows(first).transpose(0, 1)]
    others = [candidate for candidate in candidates if candidate.size(0) == first.size(0)]
    told_by = [first, *(x for x in others if not x.is_floating_point())]
    if not first.is_floating_point():
        told_by += [x for x in others if x.is_floating_point()][:1]
    return [*map(tensor_values.rows, told_by)]


def _stacked(samples: Sequence[Tensor]) -> Tensor:
    """Return one row of evenly spaced elements for each sample, padded with zeros."""
    rows = [thinned(tensor_values.rows(sample).reshape(1, -1)) for sample in samples]
    stacked = rows[0].new_zeros(len(rows), max(tensor.shape[1] for tensor in rows))
    for row, thin in zip(stacked, rows, strict=True):
        row[: thin.shape[1]] = thin[0]
    return stacked


def thinned(x: Tensor) -> Tensor:
    """Return at most ``ELEMENTS`` evenly spaced elements of each row."""
    rows = x.detach().reshape(len(x), -1)
    if rows.dtype is torch.bool:
        rows = rows.view(torch.int8)
    return rows[:, :: -(-rows.shape[1] // ELEMENTS)] if rows.shape[1] > ELEMENTS else rows


def _mixed(hashes: Tensor) -> Tensor:
    """Mix every bit of a hash into all other bits (splitmix64).

    Without this, two different pairs of numbers, such as ids of a user and an item, could have the
    same weighted sum. Source: https://prng.di.unimi.it/splitmix64.c
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        signed = factor - (1 << 64) if factor >> 63 else factor
        hashes = (hashes ^ ((hashes >> shift) & ((1 << (64 - shift)) - 1))) * signed
    return hashes


class Rows:
    """The hashes of the rows that reached one module.

    They are stored in one tensor, whose size is doubled when it is full. A separate tensor for
    every call would fragment the heap.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._end = 0
        self._calls: list[tuple[int, int]] = []  # (update cycle, end of the rows) of each call
        self._room: Tensor | None = None
        self._came: dict[int, int] = {}  # number of rows in each update cycle
        self._passes: dict[int, int] = {}  # number of calls in each update cycle
        self._least = math.inf  # smallest number of elements in a row
        self._most = 0.0

    @property
    def ragged(self) -> bool:
        """Return whether rows of some batches are much larger than rows of others."""
        return self._least < RAGGED * self._most

    def count(self, sentence: int, arrived: BatchLayout) -> None:
        """Count the rows of one call."""
        self._came[sentence] = self._came.get(sentence, 0) + arrived.count
        self._passes[sentence] = self._passes.get(sentence, 0) + 1
        if arrived.count:
            of_row = arrived.elements / arrived.count
            self._least = min(self._least, of_row)
            self._most = max(self._most, of_row)

    def came(self, first: int, last: int) -> int:
        """Return the number of rows in the cycles from ``first`` to ``last`` (exclusive)."""
        return sum(self._came.get(sentence, 0) for sentence in range(first, last))

    def passes(self, first: int, last: int) -> int:
        """Return the number of calls in the cycles from ``first`` to ``last`` (exclusive)."""
        return sum(self._passes.get(sentence, 0) for sentence in range(first, last))

    def take_back(self, sentence: int, rows: int, *, noted: bool) -> None:
        """Remove the rows of the last call, which train nothing if no output needs a gradient."""
        self._came[sentence] -= rows
        self._passes[sentence] -= 1
        if noted:
            self._calls.pop()
            self._end = self._calls[-1][1] if self._calls else 0

    def note(self, sentence: int, parts: Sequence[Tensor]) -> None:
        """Store the hashes of the rows in ``parts``."""
        hashes = self._hashes(parts)
        end = self._end + len(hashes)
        if self._kept is None:
            self._kept = torch.zeros(max(_FIRST, 2 * end), dtype=torch.int64, device=hashes.device)
        while end > len(self._kept):
            self._kept = torch.cat([self._kept, torch.zeros_like(self._kept)])
        self._kept[self._end : end] = hashes
        self._end = end
        self._calls.append((sentence, end))

    def _hashes(self, parts: Sequence[Tensor]) -> Tensor:
        """Return an int64 hash of each row over all ``parts``, on the device of the first part.

        A hash is never 0.
        """
        rows = [thinned(part) for part in parts]
        longest = max(row.numel() for row in rows)
        if self._room is None or len(self._room) < longest:
            self._room = torch.zeros(longest, dtype=torch.int64, device=parts[0].device)
        total = row_hashes(rows[0], self._room)
        for part in rows[1:]:
            total = _mixed(total) + row_hashes(part, self._room).to(total.device)
        return total | 1

    def of(self, first: int, last: int) -> np.ndarray:
        """Return the sorted hashes of rows in the update cycles from ``first`` to ``last``.

        The cycle ``last`` is not included.
        """
        spans = list(self._spans(first, last))
        if not spans or self._kept is None:
            return np.zeros(0, np.int64)
        parts = [self._kept[begin:end] for begin, end in spans]
        rows: np.ndarray = torch.cat(parts).cpu().numpy()
        return np.sort(rows)

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        begin = 0
        for sentence, end in self._calls:
            if first <= sentence < last:
                yield begin, end
            begin = end
