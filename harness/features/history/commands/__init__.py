"""The commands of the history feature, which tracks results over time."""
