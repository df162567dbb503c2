"""History: records into asv's results, on a ledger whose commits are nights."""
