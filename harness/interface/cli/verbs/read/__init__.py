"""Verbs that read what was measured."""
