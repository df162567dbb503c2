"""Turn profiler traces into a budget of the step: read, sort into lanes, match, divide."""
