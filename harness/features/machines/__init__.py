"""Compare the runs of several machines."""
