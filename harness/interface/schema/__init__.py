"""JSON Schemas of what verbs print with ``--json``; ``python -m harness.interface.schema`` writes
them again.

``answers.schema.json`` has one under ``properties`` for each verb, and for ``error``: here for the
core's verbs, in a feature's folder for its own. A verb's file says what its documents are.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from harness.base.documents import Json, closed, schema_text
from harness.cases.heads import FEATURES, name_of

HERE = Path(__file__).parent
NAME = "answers.schema.json"

#: Printed instead of an answer; ``try`` is what to do.
Error = TypedDict("Error", {"error": str, "where": str, "expected": str, "try": str})


def documents(files: Sequence[Path]) -> dict[str, tuple[Any, ...]]:
    """Verb -> its documents, of these files of verbs."""
    modules = [importlib.import_module(name_of(path)) for path in files]
    return dict(sorted(pair for module in modules for pair in module.ANSWERS.items()))


def by_folder() -> dict[Path, dict[str, tuple[Any, ...]]]:
    """The folder that keeps the schema -> the documents of its verbs."""
    from harness.interface.cli.main import COMMANDS, files

    folders: dict[Path, list[Path]] = {HERE: []}
    for path in files():
        feature = None if path.is_relative_to(COMMANDS) else path.relative_to(FEATURES).parts[0]
        folders.setdefault(FEATURES / feature if feature else HERE, []).append(path)
    return {
        folder: {**documents(commands), **({"error": (Error,)} if folder == HERE else {})}
        for folder, commands in folders.items()
    }


def answers_schema(documents: Mapping[str, tuple[Any, ...]]) -> dict[str, Json]:
    """One document with the schema of every verb's answer."""
    all_kinds = [kind for kinds in documents.values() for kind in kinds]
    schemas, components = msgspec.json.schema_components(all_kinds, ref_template="#/$defs/{name}")
    schemas_left = iter(schemas)
    properties: dict[str, Any] = {}
    for command, kinds in documents.items():
        of_command = [next(schemas_left) for _ in kinds]
        properties[command] = of_command[0] if len(of_command) == 1 else {"anyOf": of_command}
    whole = json.loads(json.dumps({"$defs": components, "properties": properties}))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "what scaleproof COMMAND --json prints: one property for each command",
        "$defs": {name: closed(part) for name, part in sorted(whole["$defs"].items())},
        "properties": {command: closed(part) for command, part in sorted(properties.items())},
    }


def write() -> None:
    for folder, of_commands in by_folder().items():
        (folder / NAME).write_text(schema_text(answers_schema(of_commands)), encoding="utf-8")
