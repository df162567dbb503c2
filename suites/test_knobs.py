"""Comparisons of settings: framework defaults, inputs, precisions, kernels, checkpointing."""

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
    """The defaults of several frameworks, on one model."""


@scaling(inputs)
def test_inputs(verdict):
    """Batches on the device, made during training, or read from files."""


@scaling(precisions)
def test_precisions(verdict):
    """Precisions from fp32 to 8 bits."""


@scaling(kernels)
def test_kernels(verdict):
    """Different implementations of the same computation in torch."""


@scaling(backends)
def test_backends(verdict):
    """Algorithms, protocols and channels of NCCL."""


@scaling(checkpoints)
def test_checkpoints(verdict):
    """The memory that activation checkpointing saves, and the time that it costs."""
