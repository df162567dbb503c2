"""Compute random sums of parameters, which show how much the parameters of two ranks differ.

The two sets of parameters can be in different processes, because the difference of their sums is
the sum of their differences. A sum of differences with random signs has a mean square that equals
the squared norm of the differences (Alon, Matias, Szegedy, "The space complexity of approximating
the frequency moments", 1999).
"""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from harness.training.observe import tensor_values

SUMS = 8
#: Largest number of elements of a parameter that a sum includes. They are evenly spaced.
ELEMENTS = 1 << 14


def sketch(parameters: Iterable[Tensor]) -> tuple[float, ...]:
    """Return ``SUMS`` sums of elements.

    Two results can be compared if the parameters are equal in number and shapes.
    """
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
    """Return random signs for elements, shape (SUMS, ELEMENTS), and for tensors, shape (n, SUMS).

    They are equal in every process. Drawing them does not change the training's random generator.
    """
    draw = torch.Generator().manual_seed(0)
    of_elements = torch.randint(0, 2, (SUMS, ELEMENTS), generator=draw)
    of_parts = torch.randint(0, 2, (1024, SUMS), generator=draw)
    return 2.0 * of_elements.double() - 1, 2.0 * of_parts.double() - 1
