"""Other views of a window than its budget: totals by name, kernels, communications, idleness."""
