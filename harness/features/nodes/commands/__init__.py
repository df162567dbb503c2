"""The commands that find slow and faulty nodes."""
