"""The pytest plugin: what ``pytest suites/`` is."""
