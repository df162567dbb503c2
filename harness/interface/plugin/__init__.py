"""The pytest plugin that makes ``pytest suites/`` measure and judge."""
