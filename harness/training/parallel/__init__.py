"""What each dimension of a mesh does to a model, and the bytes that it sends."""
