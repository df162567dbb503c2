"""How it is parallelised. One file adds one strategy: a head of literals, expect, build."""
