"""Reports of predictions: scores of published tables, predictions for one size, and audits."""
