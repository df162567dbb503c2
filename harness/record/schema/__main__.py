"""Regenerate the JSON Schema of the record."""

from harness.record.schema import write

write()
