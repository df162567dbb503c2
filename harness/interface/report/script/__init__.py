"""Report on a user's script: its table, its checks and remarks."""

# The modules register their remarks in this order.
from harness.interface.report.script import steps, remarks  # isort: skip
from harness.interface.report.script.table import lines, sections

__all__ = ["lines", "remarks", "sections", "steps"]
