"""From launches to verdicts."""
