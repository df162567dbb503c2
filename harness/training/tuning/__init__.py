"""How a training is computed, not what: kernels, compiled blocks, what forward keeps, 8 bits."""
