"""Their verb."""
