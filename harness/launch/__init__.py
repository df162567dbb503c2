"""Start ranks with an engine, manage the agents, and name the rank that broke a launch."""
