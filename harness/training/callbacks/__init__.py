"""Trainings of other frameworks that measure themselves: one file a framework, imported if asked.

Each takes what ``measure_steps`` takes.
"""
