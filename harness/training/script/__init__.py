"""Run a user's training script in a rank, unchanged, and observe it from outside its code."""
