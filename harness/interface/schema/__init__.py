"""JSON Schemas of the documents that commands print with ``--json``.

``python -m harness.interface.schema`` writes the files ``answers.schema.json``: one in this folder
for the commands of the core, and one in the folder of each feature for its commands. Each file has
a property for every command, and one for ``error``. The module of a command states its documents in
``ANSWERS``.
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

#: The document that is printed instead of an answer; ``try`` is a command that fixes the error.
Error = TypedDict("Error", {"error": str, "where": str, "expected": str, "try": str})


def documents(files: Sequence[Path]) -> dict[str, tuple[Any, ...]]:
    """Return the documents of each command in these files."""
    modules = [importlib.import_module(name_of(path)) for path in files]
    return dict(sorted(pair for module in modules for pair in module.ANSWERS.items()))


def by_folder() -> dict[Path, dict[str, tuple[Any, ...]]]:
    """Return for each folder with a schema the documents of its commands."""
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
    """Return one document with the schema of every command's answer."""
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
