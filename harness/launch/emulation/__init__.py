"""Nodes emulated on one machine: shaped links, and a switch that delays."""
