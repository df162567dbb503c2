"""The commands of the prediction feature."""
