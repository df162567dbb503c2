"""Measure a run: correctness checks, calibration launches, timed blocks, sweeps and trials are
entered in one record.
"""
