"""Acceptance: what is handed over to whoever signs."""
