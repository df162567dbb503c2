"""A night from its measurement to its message: ``scaleproof nightly``."""
