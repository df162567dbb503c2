"""The commands that publish runs and measure pull requests."""
