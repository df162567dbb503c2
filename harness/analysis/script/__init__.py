"""Check a user's script: count its samples, compare its ranks and its worlds."""
