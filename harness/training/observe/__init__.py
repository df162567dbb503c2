"""Tools with which a rank observes itself: spans, sockets, memory, collectives, threads."""
