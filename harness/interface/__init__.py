"""The user interface: the command line, the pytest plugin, tables and pages."""
