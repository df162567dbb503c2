"""Other kinds of parallelism: data-parallel variants, pipelines, tensors, sequences, experts, and
combinations.
"""

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
    """Buckets, sharding and an optimizer in backward are compared."""


@scaling(batches)
def test_batches(verdict):
    """Clipping, LAMB, samples of unequal length and a short last batch are compared."""


@scaling(optimizers)
def test_optimizers(verdict):
    """The time and the communication of optimizers are compared."""


@scaling(roles)
def test_roles(verdict):
    """Actors that generate samples for learners are compared with ranks that all learn."""


@scaling(schedule_memory)
def test_memory_of_schedules(verdict):
    """1F1B, which runs backward passes early, is compared with GPipe in memory."""


@scaling(schedules)
def test_schedules(verdict):
    """The measured bubble of each schedule is compared with its ideal bubble."""


@scaling(widths)
def test_model_parallel(verdict):
    """Tensor and context parallelism are compared with FSDP."""


@scaling(experts)
def test_experts(verdict):
    """Distributed experts are compared in speed, load and dropped tokens."""


@scaling(products)
def test_products(verdict):
    """Combinations of several dimensions are compared."""
