"""Emulate nodes on one machine: links with limited rates, and a switch that adds delays."""
