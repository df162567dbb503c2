"""Its verbs."""
