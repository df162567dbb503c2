"""Its verb."""
