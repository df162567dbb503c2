"""Measures recovery: a fault is injected into a training, which is then restarted and timed."""
