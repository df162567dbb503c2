"""What crosses the border between a program and its agents, and what ranks leave behind."""
