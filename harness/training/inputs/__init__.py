"""Sources of batches. Each file is one input.

It has a head with the literals ``INPUT`` and ``KNOBS``, and a function ``feed``.
"""
