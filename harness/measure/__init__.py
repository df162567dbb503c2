"""The measurement of a run: make every launch that its plans need, and enter it in one record.

session     one run with its bench and its progress
measurer    measures plans stage by stage
orders      the next launches of a plan: checks, calibration, references, blocks, profiles
bench       one launch: starts ranks, and makes a LaunchRecord from the files that they wrote
together    launches that run concurrently on separate nodes or devices
confirming  a fresh set of launches for every FAIL
run         the record during the measurement, and how a run is resumed
sweeper     sweeps of the collectives
describing  descriptions of cases by an agent, without a launch
"""
