"""Tasks of a rank in a launch. One file is one task: ``prepare`` and ``run``."""
