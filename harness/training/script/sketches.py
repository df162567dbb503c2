"""Compute random sums of parameters, which show how far apart two ranks' parameters are.

The two sets of parameters need not be in one process. Random-sign sums of the differences between
two tensors have a mean square equal to the squared norm of the differences (Alon, Matias, Szegedy,
"The space complexity of approximating the frequency moments", 1999).
"""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from harness.training.observe import tensor_values

SUMS = 8
#: Largest number of elements of a parameter that are summed, at even distances.
ELEMENTS = 1 << 14


def sketch(parameters: Iterable[Tensor]) -> tuple[float, ...]:
    """Return ``SUMS`` sums of elements; comparable if parameters have equal number and shapes."""
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
    """Return random signs of elements (SUMS, ELEMENTS) and of whole tensors (n, SUMS).

    They are equal in every process, and leave the training's random generator untouched.
    """
    draw = torch.Generator().manual_seed(0)
    of_elements = torch.randint(0, 2, (SUMS, ELEMENTS), generator=draw)
    of_parts = torch.randint(0, 2, (1024, SUMS), generator=draw)
    return 2.0 * of_elements.double() - 1, 2.0 * of_parts.double() - 1
