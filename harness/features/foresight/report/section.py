"""The report section of the sizes that the recipes of a run asked to be foreseen.

To foresee takes scipy's solvers, half a second to import: only a run that asks pays for them.
"""

from pathlib import Path

from markupsafe import Markup

from harness.interface.report.templates import templates
from harness.record import RunRecord

SECTION = dict(title="Foreseen, not measured", anchor="foreseen", after="scaling", place=3)


def remarks(run: RunRecord) -> list[str]:
    """A sentence for each size; never a verdict."""
    if not _asks(run):
        return []
    from harness.features.foresight.report.outlooks import recorded

    return recorded(run)


def html(run: RunRecord) -> Markup:
    """Renders the section for a page, with charts."""
    if not _asks(run):
        return Markup("")
    from harness.features.foresight.report.page import blocks

    template = templates(Path(__file__).parent).get_template("section.jinja")
    return Markup(template.render(blocks=blocks(run)))


def _asks(run: RunRecord) -> bool:
    return any(plan.target is not None for plan in run.plans)
