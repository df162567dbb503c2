"""A run in the making: every launch that a plan needs, entered into one record.

session     one run with its bench and its progress
measurer    measures plans stage by stage
orders      which launches a plan wants next: checks, calibration, references, blocks, profiles
bench       one launch: ranks are started, and a LaunchRecord is made of what they leave
together    launches that run concurrently on separate nodes or devices
confirming  a fresh set of launches for every FAIL
run         the record while it is made, and how it is resumed
sweeper     sweeps of the collectives
describing  what cases will do, asked of an agent without a launch
"""
