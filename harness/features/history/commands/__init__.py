"""Verbs about nights and what to expect of them."""
