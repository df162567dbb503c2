"""Published figures in reports."""
