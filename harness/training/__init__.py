"""The code of the rank and agent processes. Only this folder imports torch."""
