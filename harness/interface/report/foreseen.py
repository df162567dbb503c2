"""What the recipes of a run asked to be foreseen, as reports tell it.

To foresee takes scipy's solvers, half a second to import: only a run that asks pays for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.record import RunRecord

if TYPE_CHECKING:
    from harness.interface.report.page.foreseen import Block


def recorded(run: RunRecord) -> list[str]:
    """A sentence for each size; never a verdict."""
    if not _asks(run):
        return []
    from harness.interface.report.foresight.outlooks import recorded

    return recorded(run)


def blocks(run: RunRecord) -> list[Block]:
    """The same for a page, with charts."""
    if not _asks(run):
        return []
    from harness.interface.report.page.foreseen import blocks

    return blocks(run)


def _asks(run: RunRecord) -> bool:
    return any(plan.target is not None for plan in run.plans)
