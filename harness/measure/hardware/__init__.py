"""Measurements of the hardware itself: its fabric, its slow nodes, its bits."""
