"""Every other way to be parallel: data-parallel variants, layers, sequences, experts, products."""

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
    """What buckets, shards and an optimizer in backward earn."""


@scaling(batches)
def test_batches(verdict):
    """Clipping, layer-wise optimizers, samples of unequal length, a short last batch."""


@scaling(optimizers)
def test_optimizers(verdict):
    """What optimizers cost, and what they gather."""


@scaling(roles)
def test_roles(verdict):
    """Actors that generate what learners train on."""


@scaling(schedule_memory)
def test_memory_of_schedules(verdict):
    """What an early backward frees."""


@scaling(schedules)
def test_schedules(verdict):
    """The bubble that a schedule leaves, beside the one that it must."""


@scaling(widths)
def test_model_parallel(verdict):
    """Layers cut by width, and sequences by length."""


@scaling(experts)
def test_experts(verdict):
    """Routed experts: their load, and what found no room."""


@scaling(products)
def test_products(verdict):
    """Several dimensions at once."""
