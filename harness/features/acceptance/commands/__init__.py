"""The commands of the acceptance feature."""
