"""This machine: its facts and devices, its environment, whether it is fit to measure on."""
