"""Let trainings of other frameworks measure themselves.

Each function takes the arguments of ``measure_steps``. A framework is imported only when its
function is called.
"""
