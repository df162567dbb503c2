"""Tables side by side: two runs, machines, a case and its remedies."""
