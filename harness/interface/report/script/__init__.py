"""The part of a report on a user's own script: its table, its checks, remarks on it."""

from harness.interface.report.script.table import lines, sections

__all__ = ["lines", "sections"]
