"""The process of each node that has torch in memory, and the ranks that it forks."""
