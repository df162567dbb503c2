"""What a rank does in a launch. One file is one task: ``prepare`` and ``run``."""
