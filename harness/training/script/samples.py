"""Which samples reached a training: hashes of the rows that its modules are called with.

The tensors of a call have one row for each sample. Few elements of a row are hashed, evenly spread:
a row of an image costs as much as one of a sentence.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.training.observe.intake import row_hashes

#: Elements of a row that are hashed, of so many tensors at most.
ELEMENTS, MOST = 1024, 8
_FIRST = 4096


def tensors(*values: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors with rows in the arguments of a call, however they are nested, in their order."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() and value.numel():
                yield value
        elif depth and isinstance(value, Mapping):
            yield from tensors(*value.values(), depth=depth - 1)
        elif depth and isinstance(value, Sequence) and not isinstance(value, str | bytes):
            yield from tensors(*value[:8], depth=depth - 1)


def inputs(*values: Any) -> Sequence[Tensor]:
    """What tells the samples of a call apart: its first tensor, and what else has its rows.

    That may be a mask, which many samples share: tokens and labels come after it. Of floats the
    first tensor is enough. Empty where there is none, or where another module made it.
    """
    found = itertools.islice(tensors(*values), MOST)
    first = next(found, None)
    if first is None or first.requires_grad:
        return ()
    others = (x for x in found if len(x) == len(first) and not x.is_floating_point())
    return (first, *others)


def hashes(parts: Sequence[Tensor]) -> Tensor:
    """int64 hash of each row of these tensors, never 0, on their device."""
    total = _hashes(parts[0])
    for number, part in enumerate(parts[1:], start=1):
        total = total + _hashes(part).to(total.device) * (2 * number + 1)
    return total | 1


def _hashes(x: Tensor) -> Tensor:
    rows = x.detach().reshape(len(x), -1)
    if rows.shape[1] > ELEMENTS:
        rows = rows[:, :: -(-rows.shape[1] // ELEMENTS)]
    if rows.dtype is torch.bool:
        rows = rows.to(torch.int8)
    return row_hashes(rows)


class Rows:
    """What reached one module: hashes in one tensor, which grows by doubling.

    A tensor of its own for every call would keep the heap around it from being used again.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._end = 0
        self._calls: list[tuple[int, int]] = []  # sentence, end of its rows

    def note(self, sentence: int, parts: Sequence[Tensor]) -> None:
        found = hashes(parts)
        end = self._end + len(found)
        if self._kept is None:
            self._kept = torch.zeros(max(_FIRST, 2 * end), dtype=torch.int64, device=found.device)
        while end > len(self._kept):
            self._kept = torch.cat([self._kept, torch.zeros_like(self._kept)])
        self._kept[self._end : end] = found
        self._end = end
        self._calls.append((sentence, end))

    def of(self, first: int, last: int) -> np.ndarray:
        """Sorted hashes of what came in the sentences from ``first`` to before ``last``."""
        spans = list(self._spans(first, last))
        if not spans or self._kept is None:
            return np.zeros(0, np.int64)
        parts = [self._kept[begin:end] for begin, end in spans]
        found: np.ndarray = torch.cat(parts).cpu().numpy()
        return np.sort(found)

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        begin = 0
        for sentence, end in self._calls:
            if first <= sentence < last:
                yield begin, end
            begin = end
