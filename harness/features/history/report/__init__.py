"""Reports on the history, for the terminal and as a page."""
