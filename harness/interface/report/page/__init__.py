"""The HTML page of a run: a file for each of its sections."""
