"""Settings that change how a training run is computed, but not its result except for rounding.

They select kernels, compiled blocks, recomputed or offloaded activations, and 8-bit products.
"""
