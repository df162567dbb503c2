"""The shipped JSON schema equals that of the code, and sample records follow it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

from harness.record import SCHEMA
from harness.record.schema import RECORD, record_schema
from harness.record.upgrade import upgrade


def test_shipped_schema_equals_that_of_the_code() -> None:
    assert json.loads(RECORD.read_text()) == record_schema(), "python -m harness.record.schema"


def test_sample_records_match_the_schema(sample: Path) -> None:
    for folder in (sample, sample.with_name("ddp-nano-again")):
        old = json.loads((folder / "record.json").read_text())
        jsonschema.validate(upgrade(old, SCHEMA), record_schema())
