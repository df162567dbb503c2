"""Reports for people: tables, the live line, the HTML page. Reads records, and a run's progress."""
