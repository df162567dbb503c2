"""A static web site with every run of a team, in one folder."""
