"""This machine: its facts, devices and environment, and whether measurements on it are valid."""
