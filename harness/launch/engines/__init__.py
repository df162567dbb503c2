"""Who starts agents on which nodes. One file adds one engine: a head of literals, connect."""
