"""Machines: runs of several machines, side by side."""
