"""Their verbs."""
