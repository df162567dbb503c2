"""A suite that adds a script in one line."""

from harness import Protocol, scaling, script


@scaling(script("loop.py", protocol=Protocol(steps=8, cut=2, min_blocks=1, max_blocks=1)))
def test_mine(verdict):
    """The same training on more ranks."""
