"""JSON Schemas of what verbs print with ``--json``; ``python -m harness.interface.schema`` writes
them again.

``answers.schema.json`` has one under ``properties`` for each verb, and for ``error``.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from harness.base.documents import Json, closed

ANSWERS = Path(__file__).parent / "answers.schema.json"


def answers_schema() -> dict[str, Json]:
    """One document with the schema of every verb's answer."""
    from harness.interface.schema.documents import DOCUMENTS

    every = [kind for kinds in DOCUMENTS.values() for kind in kinds]
    schemas, components = msgspec.json.schema_components(every, ref_template="#/$defs/{name}")
    found = iter(schemas)
    properties: dict[str, Any] = {}
    for verb, kinds in DOCUMENTS.items():
        of_verb = [next(found) for _ in kinds]
        properties[verb] = of_verb[0] if len(of_verb) == 1 else {"anyOf": of_verb}
    whole = json.loads(json.dumps({"$defs": components, "properties": properties}))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "what scaleproof VERB --json prints: one property for each verb",
        "$defs": {name: closed(part) for name, part in sorted(whole["$defs"].items())},
        "properties": {verb: closed(part) for verb, part in sorted(properties.items())},
    }


def write() -> None:
    ANSWERS.write_text(json.dumps(answers_schema(), indent=1) + "\n")
