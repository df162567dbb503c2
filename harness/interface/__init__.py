"""The parts that people touch: the command, the pytest plugin, tables and pages."""
