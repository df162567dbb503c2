"""The command that writes a static site."""
