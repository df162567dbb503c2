"""What a rank observes of itself: spans, sockets, memory, collectives, threads."""
