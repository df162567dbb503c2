"""Compute a launch's figures from the samples of its ranks."""
