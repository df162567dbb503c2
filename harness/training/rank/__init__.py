"""What one rank does in one launch: one task a file."""
