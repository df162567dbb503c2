"""Ladders that others have published, as a file."""
