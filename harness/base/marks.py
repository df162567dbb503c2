"""Attributes by which functions of a suite are known: ``@scaling`` sets them, pytest looks."""

MARK = "__scaleproof_recipes__"
RECOVERS = "__scaleproof_recoveries__"
#: What a function of ``@scaling`` requires.
BOUNDS = "__scaleproof_bounds__"
