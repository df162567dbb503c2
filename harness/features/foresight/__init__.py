"""Foretells what a larger world will reach, from a few small ones: offline, without torch.

    table -> Shape, measured rate -> terms of a step -> posterior -> efficiency with an interval

``docs/foresight.md`` says what is assumed and where it errs.
"""
