"""Which samples reached the model: told by their content, whoever handed them out.

A strategy may drop samples, train on old ones, or leave a rank idle, and still be handed every
batch. A hook on the model's first block notes its inputs; they are hashed after the window.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.training.data import hashed

#: Elements that are hashed at a time: their 64-bit copies are in memory.
CHUNK = 1 << 22


class Intake:
    """Notes the inputs of the model's first block, step by step.

    ``keep``: the batches stay in memory anyhow, so inputs are hashed after the window; else at
    once, as part of loading them.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._noted: list[Tensor] = []
        self._ends: list[int] = []

    def watch(self, model: nn.Sequential) -> None:
        """Before a strategy wraps or cuts it: hooks stay with the block."""
        append = self._noted.append

        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:  # as little as can be: it is timed
            append(inputs[0])

        def hashed_at_once(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            append(row_hashes(inputs[0]))

        first = next(iter(model.children()))
        first.register_forward_pre_hook(note if self._keep else hashed_at_once)

    def end_step(self) -> None:
        self._ends.append(len(self._noted))

    def rows(self) -> np.ndarray:
        """int64 hashes of the distinct samples of each step (steps, largest step), 0 = none.

        Ranks that do not hold the first block see none.
        """
        return padded(list(self._by_step()))

    def _by_step(self) -> Iterator[np.ndarray]:
        begin = 0
        for end in self._ends:
            noted = [x for x in self._noted[begin:end] if x.device.type != "meta"]
            rows = [row_hashes(x) if self._keep else x for x in noted]
            begin = end
            yield np.unique(torch.cat(rows).cpu().numpy()) if rows else np.zeros(0, np.int64)


def padded(steps: list[np.ndarray]) -> np.ndarray:
    """Rows of unequal length as one int64 array, filled up with 0."""
    out = np.zeros((len(steps), max((len(s) for s in steps), default=0)), np.int64)
    for row, values in zip(out, steps, strict=True):
        row[: len(values)] = values
    return out


def row_hashes(x: Tensor) -> Tensor:
    """An int64 hash of each row's bits, on the device; never 0."""
    rows = x.detach().reshape(len(x), -1).contiguous()
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    bits = rows.view(width)
    total = torch.ones(len(rows), dtype=torch.int64, device=rows.device)
    step = max(1, CHUNK // max(1, len(rows)))
    for start in range(0, bits.shape[1], step):
        part = bits[:, start : start + step].to(torch.int64)
        total += (part * _weights(start, part.shape[1]).to(part.device)).sum(1)
    return total | 1


def digest(tensors: Iterator[Tensor]) -> str:
    """16 hex digits of all bits of these tensors, in order."""
    total = 0
    for number, tensor in enumerate(tensors):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        one = int(row_hashes(local.reshape(1, -1))) if local.numel() else 0
        total = (total * 6364136223846793005 + one * (2 * number + 1)) % 2**64
    return f"{total:016x}"


def _weights(start: int, count: int) -> Tensor:
    """Odd pseudo-random multipliers of these columns."""
    return hashed(torch.arange(start, start + count), 1)[:, 0] | 1
