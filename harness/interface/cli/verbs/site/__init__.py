"""Verbs about what is here: machine, cases, rules."""
