"""Let trainings of other frameworks measure themselves; a framework is imported only when used.

Each function takes the arguments of ``measure_steps``.
"""
