"""Basic modules: documents, errors, strict TOML, statistics, number formats and atomic file
writes.
"""
