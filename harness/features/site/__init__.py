"""Site: every run of a team as one folder of static pages."""
