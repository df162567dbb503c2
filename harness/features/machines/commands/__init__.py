"""The command that compares machines."""
