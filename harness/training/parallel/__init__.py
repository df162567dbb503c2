"""The dimensions of a mesh: how each one splits or replicates a model, and the bytes it sends."""
