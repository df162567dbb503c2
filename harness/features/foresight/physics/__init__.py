"""Formulas and simulations that hold on any machine."""
