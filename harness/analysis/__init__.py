"""Analysis of a run's record: metrics, time budgets and verdicts, computed without torch."""
