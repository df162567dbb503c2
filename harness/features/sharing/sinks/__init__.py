"""Where runs can go to: one file is one place, found by its head."""
