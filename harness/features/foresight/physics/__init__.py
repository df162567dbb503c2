"""Formulas and what is played: what is true of any machine."""
