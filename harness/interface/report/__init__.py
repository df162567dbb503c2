"""Present records, and the progress of a run, as terminal tables, live line and HTML page."""
