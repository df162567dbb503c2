"""Which samples reached the model: told by their content, whoever handed them out.

A strategy may drop samples, train on old ones, or leave a rank idle, and still be handed every
batch. A hook on the model's first block notes its inputs; they are hashed after the window.
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

#: Elements that are hashed at a time: their 64-bit copies are in memory.
CHUNK = 1 << 22
#: So few multipliers are made once: a row of tokens is hashed in a tenth of the time.
KEPT = 1 << 16
#: Multipliers that an agent makes before it forks ranks, which read them where they are.
PREPARED = 1 << 18
#: Integers of as many bytes as an element.
_WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: As many as a loop of torch's computes without threads: an agent may have none.
_ALONE = 1 << 14


class Intake:
    """Notes the inputs of the model's first block, step by step.

    Batches of the pool stay in memory anyhow, so they are hashed after the window. Whatever else
    reaches the model (loaded in the step, copied, cast) is hashed at once: it must not be kept.
    """

    def __init__(self) -> None:
        self._pool: set[int] = set()
        self._noted: list[tuple[Tensor, bool]] = []
        self._ends: list[int] = []

    def pool(self, batch: Tensor) -> None:
        """Inputs that stay as they are until the window is over."""
        self._pool.add(batch.untyped_storage().data_ptr())

    def watch(self, model: nn.Sequential) -> None:
        """Before a strategy wraps or cuts it: hooks stay with the block."""
        pool = self._pool
        append = self._noted.append

        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:  # as little as can be: it is timed
            x = inputs[0]
            if x.is_meta:  # shapes are asked for
                return
            stays = x.data_ptr() in pool or x.untyped_storage().data_ptr() in pool
            append((x if stays else row_hashes(x), stays))

        parts(model)[0].register_forward_pre_hook(note)

    def restart(self) -> None:
        """Forget what was noted: another window begins."""
        self._noted.clear()
        self._ends.clear()

    def end_step(self) -> None:
        self._ends.append(len(self._noted))

    def rows(self) -> np.ndarray:
        """int64 hashes of the distinct samples of each step (steps, largest step), 0 = none.

        Ranks that do not hold the first block see none.
        """
        return padded(list(self._by_step()))

    def _by_step(self) -> Iterator[np.ndarray]:
        late = iter(every_row_hashed([tensor for tensor, stays in self._noted if stays]))
        hashes = [next(late) if stays else tensor for tensor, stays in self._noted]
        begin = 0
        for end in self._ends:
            rows = hashes[begin:end]
            begin = end
            yield np.unique(torch.cat(rows).cpu().numpy()) if rows else np.zeros(0, np.int64)


def padded(steps: list[np.ndarray]) -> np.ndarray:
    """Rows of unequal length as one int64 array, filled up with 0."""
    filled = np.zeros((len(steps), max((len(step) for step in steps), default=0)), np.int64)
    for row, values in zip(filled, steps, strict=True):
        row[: len(values)] = values
    return filled


def every_row_hashed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """``row_hashes`` of each; many small ones of one kind at once, in a tenth of the time."""
    kinds = {(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) == 1 and sum(tensor.numel() for tensor in tensors) <= CHUNK:
        return list(
            row_hashes(torch.cat(tuple(tensors))).split([len(tensor) for tensor in tensors])
        )
    return [row_hashes(tensor) for tensor in tensors]


def row_hashes(x: Tensor, room: Tensor | None = None) -> Tensor:
    """An int64 hash of each row's bits, on the device; never 0.

    ``room`` (int64) is where the work is done if it is large enough: fresh memory of this size has
    to be mapped anew each time, which takes several times as long as the work.
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
    """16 hex digits of all bits of these tensors, in order; of sharded ones of this rank's part."""
    total = 0
    for number, piece in enumerate(piece for tensor in tensors for piece in pieces(tensor)):
        hashed_row = int(row_hashes(piece.reshape(1, -1))) if piece.numel() else 0
        total = (total * 6364136223846793005 + hashed_row * (2 * number + 1)) % 2**64
    return f"{total:016x}"


def prepare() -> None:
    """Make the multipliers of the first columns: what every rank would make for itself."""
    if _prepared:
        return
    weights = torch.empty(PREPARED, dtype=torch.int64)
    for start in range(0, PREPARED, _ALONE):
        weights[start : start + _ALONE] = _made(start, _ALONE, weights.device)
    _prepared.append(weights)


#: What ``prepare`` made.
_prepared: list[Tensor] = []


def _weights(start: int, count: int, device: torch.device) -> Tensor:
    """Odd pseudo-random multipliers of these columns."""
    if _prepared and device.type == "cpu" and start + count <= PREPARED:
        return _prepared[0][start : start + count]
    return (_kept if count <= KEPT else _made)(start, count, device)


def _made(start: int, count: int, device: torch.device) -> Tensor:
    return hashed(torch.arange(start, start + count, device=device), 1)[:, 0] | 1


_kept = functools.lru_cache(maxsize=8)(_made)
