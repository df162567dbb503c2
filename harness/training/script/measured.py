"""Provide ``measured``, with which a script marks where its training begins."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.training.script.region import region

region.awaited = True  # code that imports this module will enter the region


@contextmanager
def measured() -> Iterator[None]:
    """Count steps from here on; without scaleproof the context manager does nothing.

    A script needs it if it trains something else before the training to measure.
    """
    region.enter()
    yield
