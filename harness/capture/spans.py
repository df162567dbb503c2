"""``span``: a named range in the NVTX domain ``scaleproof``, so that ``nsys`` shows the phases.

Without a profiler attached, NVTX is a no-op of about a microsecond.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import nvtx

_COLORS = {"step": "green", "optimizer": "purple", "gate": "yellow"}


@functools.cache
def span(name: str, category: str = "step") -> AbstractContextManager[object]:
    """A range called ``name`` of a category (step, optimizer, gate).

    Made once for each name, so keep names few: a new one costs ten times as much as a known one.
    """
    found: AbstractContextManager[object] = nvtx.annotate(
        message=name, color=_COLORS.get(category, "white"), domain="scaleproof", category=category
    )
    return found
