"""The tasks of a rank in a launch. Each file is one task with functions ``prepare`` and ``run``."""
