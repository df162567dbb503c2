"""Recovery: a training is broken on purpose, goes on, and what lies between is timed."""
