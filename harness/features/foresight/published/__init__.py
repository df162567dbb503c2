"""Read scaling sweeps that others have published, from a file."""
