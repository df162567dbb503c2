"""Destinations for published results. Each file is one destination, identified by its head."""
