"""Strategies of parallel training.

One file is one strategy: a head of literals, the function ``expect`` and the function ``build``.
"""
