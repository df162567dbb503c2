"""The ranks: the only folder that imports torch, and that nobody imports."""
