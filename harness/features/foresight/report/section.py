"""The report section with predictions for the sizes that the recipes of a run list.

A prediction imports scipy's solvers, which takes half a second. They are
imported only for runs with predictions.
"""

from pathlib import Path

from markupsafe import Markup

from harness.interface.report.templates import templates
from harness.record import RunRecord

SECTION = dict(title="Predicted, not measured", anchor="foreseen", after="scaling", place=3)


def remarks(run: RunRecord) -> list[str]:
    """Return a sentence for each predicted size. A prediction is never a verdict."""
    if not _asks(run):
        return []
    from harness.features.foresight.report.outlooks import recorded

    return recorded(run)


def html(run: RunRecord) -> Markup:
    """Render the section for a page, with charts."""
    if not _asks(run):
        return Markup("")
    from harness.features.foresight.report.foresight_page import blocks

    template = templates(Path(__file__).parent).get_template("section.jinja")
    return Markup(template.render(blocks=blocks(run)))


def _asks(run: RunRecord) -> bool:
    return any(plan.target is not None for plan in run.plans)
