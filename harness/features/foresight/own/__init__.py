"""Scaling sweeps that the user measured, in the same form as published ones."""
