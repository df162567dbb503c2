"""The work of one rank in one launch: one task a file."""
