"""Texts for other places: comments, summaries, annotations."""
