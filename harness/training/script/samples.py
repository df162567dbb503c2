"""Which samples reached a training: hashes of the rows that its modules are called with.

The first tensor of a call has one row for each sample. Few elements of a row are hashed, evenly
spread: a row of an image costs as much as one of a sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.training.observe.intake import row_hashes

#: Elements of a row that are hashed.
ELEMENTS = 1024
_FIRST = 4096


def first_tensor(*values: Any, depth: int = 4) -> Tensor | None:
    """The first tensor with rows in the arguments of a call, however they are nested."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() and value.numel():
                return value
            continue
        inner: Sequence[Any] = ()
        if isinstance(value, Mapping):
            inner = tuple(value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            inner = value[:8]
        if depth and (found := first_tensor(*inner, depth=depth - 1)) is not None:
            return found
    return None


def hashes(x: Tensor) -> Tensor:
    """int64 hash of each row of a tensor, never 0, on its device."""
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

    def note(self, sentence: int, x: Tensor) -> None:
        found = hashes(x)
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
