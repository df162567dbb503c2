"""Write the schemas of all answers: ``python -m harness.interface.schema``."""

from harness.interface.schema import write

write()
