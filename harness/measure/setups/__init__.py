"""A case in several environments, in the same blocks: which is faster, and since which version."""
