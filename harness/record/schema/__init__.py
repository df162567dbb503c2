"""The JSON Schema of the record, which is a file of this package.

The command ``python -m harness.record.schema`` regenerates the file.
"""

from pathlib import Path

from harness.base.documents import Json, json_schema, schema_text
from harness.record.record import SCHEMA, RunRecord
from harness.record.store import DIGEST

HERE = Path(__file__).parent
RECORD = HERE / "record.schema.json"


def record_schema() -> dict[str, Json]:
    """Return the JSON Schema of ``record.json``, generated from the dataclasses."""
    schema = json_schema(RunRecord, title=f"scaleproof record, schema {SCHEMA}")
    digest = {"type": "string", "description": "sha256 of the file without this line"}
    schema["$defs"]["RunRecord"]["properties"][DIGEST] = digest
    return schema


def write() -> None:
    """Write the JSON Schema into the package."""
    RECORD.write_text(schema_text(record_schema()), encoding="utf-8")
