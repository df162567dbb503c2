"""Settings beside each other: usual defaults, inputs, precisions, kernels, checkpoints."""

import pytest
from knobs import (
    backends,
    checkpoints,
    inputs,
    kernels,
    precisions,
    published,
    published_stages,
)

from harness import scaling

pytestmark = pytest.mark.nightly


@scaling(published, published_stages)
def test_usual_defaults(verdict):
    """What frameworks ship, on one model."""


@scaling(inputs)
def test_inputs(verdict):
    """Where batches come from."""


@scaling(precisions)
def test_precisions(verdict):
    """In how many bits."""


@scaling(kernels)
def test_kernels(verdict):
    """Which of torch's ways to compute the same."""


@scaling(backends)
def test_backends(verdict):
    """Ring against tree."""


@scaling(checkpoints)
def test_checkpoints(verdict):
    """Memory saved, and time paid for it."""
