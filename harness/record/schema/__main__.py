"""Write the shipped schemas."""

from harness.record.schema import write

write()
