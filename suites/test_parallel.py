"""Variants of data parallelism, and pipeline, tensor, context, expert and combined parallelism."""

import pytest
from parallel import (
    batches,
    experts,
    optimizers,
    products,
    roles,
    schedule_memory,
    schedules,
    variants,
    widths,
)

from harness import scaling

pytestmark = pytest.mark.nightly


@scaling(variants)
def test_data_parallel(verdict):
    """The effect of buckets, of sharding, and of an optimizer step during the backward pass."""


@scaling(batches)
def test_batches(verdict):
    """Gradient clipping, LAMB, samples of unequal length, and a short last batch."""


@scaling(optimizers)
def test_optimizers(verdict):
    """The time, memory and communication of optimizers."""


@scaling(roles)
def test_roles(verdict):
    """Actors that generate the data on which learners train."""


@scaling(schedule_memory)
def test_memory_of_schedules(verdict):
    """The memory that 1F1B saves by early backward passes."""


@scaling(schedules)
def test_schedules(verdict):
    """The measured pipeline bubble of each schedule, compared with its ideal bubble."""


@scaling(widths)
def test_model_parallel(verdict):
    """Tensor parallelism, and context parallelism, which divides sequences."""


@scaling(experts)
def test_experts(verdict):
    """A mixture of experts: the load of the experts, and the tokens that they drop."""


@scaling(products)
def test_products(verdict):
    """Combinations of two kinds of parallelism."""
