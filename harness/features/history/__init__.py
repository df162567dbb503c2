"""The history of nightly runs: records are stored as results of asv, on a ledger with a commit per
run.
"""
