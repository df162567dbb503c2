"""Its pages."""
