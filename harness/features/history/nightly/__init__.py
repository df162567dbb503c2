"""A night from its measurement to its message: ``scaleproof history nightly``."""
