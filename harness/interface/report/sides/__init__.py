"""What is laid side by side: two runs, machines, a case and its remedies."""
