"""The commands that measure recovery and goodput under injected faults."""
