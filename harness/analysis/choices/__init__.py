"""Choices of a user: the micro-batch that fits, the codec that pays, the remedy that helps."""
