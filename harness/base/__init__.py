"""Basic modules that the rest of the package builds on.

documents   conversion of dataclasses to JSON and back, and their JSON Schema
errors      errors for users, and exit statuses
host_errors messages for errors of the operating system
files       files that are written completely or not at all, locks, digests
formatting  numbers, durations and untrusted text as people read them
packs       many small arrays in one file
pipes       standard streams that may break
programs    import of files by path, and names of programs that other processes start
stats       intervals, slopes, quantiles
toml        a strict TOML reader that reports all mistakes of a file together
"""
