"""A rank's observations of itself: spans, sockets, memory, collectives, threads."""
