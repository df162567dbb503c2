"""Report on a user's script: its table, its checks and remarks."""

from harness.interface.report.script.table import lines, sections

__all__ = ["lines", "sections"]
