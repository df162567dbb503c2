"""The shipped JSON Schema; ``python -m harness.record.schema`` writes it again."""

import json
from pathlib import Path

from harness.base.documents import Json, json_schema
from harness.record.record import SCHEMA, RunRecord

HERE = Path(__file__).parent
RECORD = HERE / "record.schema.json"


def record_schema() -> dict[str, Json]:
    """The schema of ``record.json``, made from the dataclasses themselves."""
    return json_schema(RunRecord, title=f"scaleproof record, schema {SCHEMA}")


def write() -> None:
    RECORD.write_text(json.dumps(record_schema(), indent=1) + "\n")
