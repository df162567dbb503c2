"""Basic modules that the rest of the package builds on.

documents   dataclasses to JSON and back; JSON Schema
errors      errors for users, exit statuses; host_errors words errors of the operating system
files       files that are written whole or not at all, locks, digests
formatting  numbers, durations and foreign text for people
packs       many small arrays in one file
pipes       standard streams that may break
programs    programs of this package that other processes start, and files imported by path
stats       intervals, slopes, quantiles
toml        a strict TOML reader that reports every mistake at once
"""
