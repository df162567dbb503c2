"""Random sums of parameters: how far two ranks' are apart is told without both at hand.

Of the differences between two tensors the sums with random signs have the differences' norm, in the
mean of their squares (Alon, Matias, Szegedy, "The space complexity of approximating the frequency
moments", 1999).
"""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from harness.training.observe import tensor_values

SUMS = 8
#: Elements of a parameter that are summed, evenly drawn.
ELEMENTS = 1 << 14


def sketch(parameters: Iterable[Tensor]) -> tuple[float, ...]:
    """``SUMS`` sums of elements; comparable where the parameters are alike in number and shape."""
    signs, of_parts = _signs()
    sums = torch.zeros(SUMS, dtype=torch.float64)
    parts = (
        part
        for parameter in parameters
        for part in tensor_values.pieces(tensor_values.local(parameter))
    )
    for number, part in enumerate(parts):
        elements = part.reshape(-1)
        few = elements[:: max(1, len(elements) // ELEMENTS)][:ELEMENTS].cpu().double()
        sums += of_parts[number % len(of_parts)] * (signs[:, : len(few)] @ few)
    return tuple(sums.tolist())


@functools.cache
def _signs() -> tuple[Tensor, Tensor]:
    """Those of elements (SUMS, ELEMENTS), and of whole tensors (n, SUMS): the same in every
    process, and no random numbers of the training's.
    """
    draw = torch.Generator().manual_seed(0)
    of_elements = torch.randint(0, 2, (SUMS, ELEMENTS), generator=draw)
    of_parts = torch.randint(0, 2, (1024, SUMS), generator=draw)
    return 2.0 * of_elements.double() - 1, 2.0 * of_parts.double() - 1
