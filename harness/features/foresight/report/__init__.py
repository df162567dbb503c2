"""Forecasts for a terminal: errors of published tables, and outlooks for one size."""
