"""Predict the scaling efficiency of a large world from a few small ones, offline and without torch.

table -> Shape, measured rate -> terms of a step -> posterior -> efficiency with an interval

``docs/foresight.md`` states the assumptions and the known errors.
"""
