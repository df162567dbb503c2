"""A nightly run from its measurement to its notification: ``scaleproof history nightly``."""
