"""Ladders of runs: what was measured here, in the form in which published ladders come."""
