"""The history as people look at it: in the terminal, and as a page."""
