"""Their table and their page."""
