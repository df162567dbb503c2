"""Settings of how a training run is computed.

They are kernels, compiled blocks, recomputation and offloading of activations, and 8-bit products.
"""
