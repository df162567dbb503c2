"""Attributes by which functions of a suite are known: ``@scaling`` sets them, pytest looks."""

MARK, RECOVERS = "__scaleproof_recipes__", "__scaleproof_recoveries__"
