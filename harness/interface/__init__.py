"""What people touch: the command, the pytest plugin, tables and pages."""
