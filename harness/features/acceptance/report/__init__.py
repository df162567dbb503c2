"""The acceptance document as a page."""
