"""A user's own training in a rank: unchanged, watched from outside of its code."""
