"""Features: each folder is whole, imports the core alone, and can be deleted."""
