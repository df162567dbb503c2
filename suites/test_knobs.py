"""Comparisons of settings: usual defaults, inputs, precisions, kernels, checkpoints."""

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
    """The defaults of frameworks are compared on one model."""


@scaling(inputs)
def test_inputs(verdict):
    """Sources of batches are compared."""


@scaling(precisions)
def test_precisions(verdict):
    """Precisions from fp32 to 8 bits are compared."""


@scaling(kernels)
def test_kernels(verdict):
    """Implementations of the same operations in torch are compared."""


@scaling(backends)
def test_backends(verdict):
    """NCCL's algorithms, protocols and channels are compared with its automatic choice."""


@scaling(checkpoints)
def test_checkpoints(verdict):
    """The memory that activation checkpointing saves is compared with its cost in time."""
