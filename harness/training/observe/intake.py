"""Record which samples reached the model, identified by their content.

A strategy may receive every batch, and still drop samples, train on old ones, or leave a rank idle.
A hook on the model's first block therefore records its inputs, which are hashed after the window.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.training.context import parts
from harness.training.data import hashed
from harness.training.observe.tensor_values import pieces

#: Number of elements that are hashed in one operation. It limits the memory for 64-bit copies.
CHUNK = 1 << 22
#: A hash multiplies each column by a pseudo-random number. Up to this number of multipliers are
#: cached, so that a row of tokens is hashed in a tenth of the time.
KEPT = 1 << 16
#: Number of multipliers that an agent makes before it forks ranks, which then share its memory.
PREPARED = 1 << 18
#: The integer dtype for an element of this many bytes.
_WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Largest number of elements that torch processes without starting threads. An agent must not start
#: any, because it forks.
_ALONE = 1 << 14


class Intake:
    """A recorder of the inputs of the model's first block, step by step.

    Batches that were made before the window (the pool) stay in memory, so they are hashed after the
    window. Other inputs (loaded in the step, copied, cast) are hashed immediately, because keeping
    them would take memory.
    """

    def __init__(self) -> None:
        self._pool: set[int] = set()
        self._noted: list[tuple[Tensor, bool]] = []
        self._ends: list[int] = []

    def pool(self, batch: Tensor) -> None:
        """Register inputs that do not change until the window has ended."""
        self._pool.add(batch.untyped_storage().data_ptr())

    def watch(self, model: nn.Sequential) -> None:
        """Add the hook to a plain model.

        Call this before a strategy wraps or shards the model. The hook remains on the block.
        """
        pool = self._pool
        append = self._noted.append

        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            """Record the inputs. It does little work, because it is part of the timed step."""
            x = inputs[0]
            if x.is_meta:  # a pass that only infers shapes
                return
            stays = x.data_ptr() in pool or x.untyped_storage().data_ptr() in pool
            append((x if stays else row_hashes(x), stays))

        parts(model)[0].register_forward_pre_hook(note)

    def restart(self) -> None:
        """Clear the record before another window begins."""
        self._noted.clear()
        self._ends.clear()

    def end_step(self) -> None:
        """Mark the end of a step."""
        self._ends.append(len(self._noted))

    def rows(self) -> np.ndarray:
        """Return int64 hashes of the distinct samples of each step, shape (steps, columns).

        There are as many columns as samples in the largest step. Rows are padded with 0. Ranks
        that do not have the first block record no samples.
        """
        return padded(list(self._by_step()))

    def _by_step(self) -> Iterator[np.ndarray]:
        """Yield the hashes of the distinct samples of each step."""
        late = iter(every_row_hashed([tensor for tensor, stays in self._noted if stays]))
        hashes = [next(late) if stays else tensor for tensor, stays in self._noted]
        begin = 0
        for end in self._ends:
            rows = hashes[begin:end]
            begin = end
            yield np.unique(torch.cat(rows).cpu().numpy()) if rows else np.zeros(0, np.int64)


def padded(steps: list[np.ndarray]) -> np.ndarray:
    """Return rows of unequal length as one int64 array, padded with 0."""
    filled = np.zeros((len(steps), max((len(step) for step in steps), default=0)), np.int64)
    for row, values in zip(filled, steps, strict=True):
        row[: len(values)] = values
    return filled


def every_row_hashed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return ``row_hashes`` of each tensor.

    Small tensors whose rows have the same shape and dtype are hashed together, which takes a tenth
    of the time.
    """
    kinds = {(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) == 1 and sum(tensor.numel() for tensor in tensors) <= CHUNK:
        return list(
            row_hashes(torch.cat(tuple(tensors))).split([len(tensor) for tensor in tensors])
        )
    return [row_hashes(tensor) for tensor in tensors]


def row_hashes(x: Tensor, room: Tensor | None = None) -> Tensor:
    """Return an int64 hash of the bits of each row, on the tensor's device. A hash is never 0.

    ``room`` (int64) is used as a buffer if it is large enough. Without it, new memory of this size
    must be mapped each time, which takes several times as long as the computation.
    """
    rows = x.detach().reshape(len(x), -1).contiguous()
    width = _WIDTHS[rows.element_size()]
    bits = rows.view(width)
    total = torch.ones(len(rows), dtype=torch.int64, device=rows.device)
    step = max(1, CHUNK // max(1, len(rows)))
    for start in range(0, bits.shape[1], step):
        part = bits[:, start : start + step]
        if room is None or room.device != x.device or len(room) < part.numel():
            room = torch.empty(part.numel(), dtype=torch.int64, device=x.device)
        work = room[: part.numel()].view(part.shape)
        work.copy_(part)
        total += work.mul_(_weights(start, part.shape[1], part.device)).sum(1)
    return total | 1


def digest(tensors: Iterator[Tensor]) -> str:
    """Return a digest of all bits of these tensors in order, as 16 hexadecimal digits.

    The digest includes only this rank's part of sharded tensors.
    """
    total = 0
    for number, piece in enumerate(piece for tensor in tensors for piece in pieces(tensor)):
        hashed_row = int(row_hashes(piece.reshape(1, -1))) if piece.numel() else 0
        total = (total * 6364136223846793005 + hashed_row * (2 * number + 1)) % 2**64
    return f"{total:016x}"


def prepare() -> None:
    """Compute the multipliers of the first columns. The agent does this once for all its ranks."""
    if _prepared:
        return
    weights = torch.empty(PREPARED, dtype=torch.int64)
    for start in range(0, PREPARED, _ALONE):
        weights[start : start + _ALONE] = _made(start, _ALONE, weights.device)
    _prepared.append(weights)


#: The multipliers that ``prepare`` computed. The list is empty before that.
_prepared: list[Tensor] = []


def _weights(start: int, count: int, device: torch.device) -> Tensor:
    """Return odd pseudo-random multipliers for these columns."""
    if _prepared and device.type == "cpu" and start + count <= PREPARED:
        return _prepared[0][start : start + count]
    return (_kept if count <= KEPT else _made)(start, count, device)


def _made(start: int, count: int, device: torch.device) -> Tensor:
    """Compute the multipliers for these columns."""
    return hashed(torch.arange(start, start + count, device=device), 1)[:, 0] | 1


_kept = functools.lru_cache(maxsize=8)(_made)
