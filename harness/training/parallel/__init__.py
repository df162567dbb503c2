"""The effect of each dimension of a mesh on a model, and the bytes that it sends."""
