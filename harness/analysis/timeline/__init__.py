"""From traces to a budget: reader, lanes, matching, terms that sum to the step, their causes."""
