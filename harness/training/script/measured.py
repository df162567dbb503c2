"""Provide ``measured``, with which a script marks where its training begins."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.training.script.region import region

region.awaited = True  # code that imports this module will enter the region


@contextmanager
def measured() -> Iterator[None]:
    """Mark the training to measure: its steps are counted from here on.

    A script needs this context manager if it trains something else before. If scaleproof does not
    run the script, the context manager does nothing.
    """
    region.enter()
    yield
