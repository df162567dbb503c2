"""Destinations for published results. Each file is one destination and describes it in SINK."""
