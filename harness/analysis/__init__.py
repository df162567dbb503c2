"""From a record to figures, budgets and verdicts: offline, without torch."""
