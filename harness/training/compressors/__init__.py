"""Compressors of gradients.

One file is one compressor: a head of literals, the function ``promise`` and the function ``build``.
"""
