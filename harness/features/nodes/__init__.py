"""Which node, or which link, is slow: pairs of nodes in rounds, and what they say of each node."""
