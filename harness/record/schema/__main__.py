"""Write the shipped schemas."""

from harness.schema import write

write()
