"""Support a user's choices of the batch size, of a compressor and of a remedy for lost time."""
