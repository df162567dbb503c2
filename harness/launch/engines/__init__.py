"""The engines, which start agents on nodes.

One file adds one engine: its head of literals declares it, and ``build()`` returns it.
"""
