"""Sharing: what a change did, and what came of runs, said where people already look."""
