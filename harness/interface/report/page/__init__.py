"""The HTML page of a run, with one file for each section of the page."""
