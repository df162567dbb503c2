"""Frozen dataclasses <-> JSON documents, and the JSON Schema of a dataclass, from its type hints.

Supported field types: str, int, float, bool, None, StrEnum, tuple[T, ...], frozenset[T],
Mapping[str, T], T | None, Json (anything) and nested dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, Union

T = TypeVar("T")

#: A JSON value. Deliberately loose: it is what crosses process and file borders.
Json = Any


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def to_doc(value: Any, *, lean: bool = False) -> Json:
    """The JSON document of a dataclass (or of a container of them).

    A ``lean`` one leaves out what has its default, so that a new field changes no old document.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_doc(getattr(value, f.name), lean=lean)
            for f in dataclasses.fields(value)
            if not (lean and getattr(value, f.name) == f.default)
        }
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): to_doc(v, lean=lean) for k, v in value.items()}
    if isinstance(value, frozenset):
        return sorted(to_doc(v, lean=lean) for v in value)
    if isinstance(value, list | tuple):
        return [to_doc(v, lean=lean) for v in value]
    return value


def from_doc(cls: type[T], doc: Json, where: str = "") -> T:
    """The dataclass that a document describes; ValueError names the path of what does not fit."""
    return typing.cast(T, _decode(cls, doc, where or cls.__name__))


def _decode(hint: Any, doc: Json, where: str) -> Any:
    if hint is Any:
        return doc
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        if doc is None and type(None) in typing.get_args(hint):
            return None
        (inner,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return _decode(inner, doc, where)
    if origin in (tuple, frozenset):
        _expect(doc, list, where)
        item = typing.get_args(hint)[0]
        return origin(_decode(item, v, f"{where}[{i}]") for i, v in enumerate(doc))
    if origin is not None and issubclass(origin, Mapping):
        _expect(doc, dict, where)
        item = typing.get_args(hint)[1]
        return {k: _decode(item, v, f"{where}.{k}") for k, v in doc.items()}
    if dataclasses.is_dataclass(hint):
        _expect(doc, dict, where)
        fields = {f.name: f for f in dataclasses.fields(hint)}
        if unknown := sorted(set(doc) - set(fields)):
            raise ValueError(f"{where}: unknown field {unknown[0]!r}")
        hints = _hints(typing.cast(type, hint))
        values = {k: _decode(hints[k], v, f"{where}.{k}") for k, v in doc.items()}
        try:
            return hint(**values)  # type: ignore[operator]
        except TypeError as error:
            raise ValueError(f"{where}: {error}") from None
    if issubclass(hint, StrEnum):
        try:
            return hint(doc)
        except ValueError:
            raise ValueError(f"{where}: {doc!r} is none of {[str(m) for m in hint]}") from None
    if hint is float and isinstance(doc, int) and not isinstance(doc, bool):
        return float(doc)
    _expect(doc, hint, where)
    return doc


def _expect(doc: Json, kind: type, where: str) -> None:
    if not isinstance(doc, kind) or (kind in (int, float) and isinstance(doc, bool)):
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(doc).__name__} {doc!r}")


def json_schema(cls: type, *, title: str) -> dict[str, Json]:
    """JSON Schema (2020-12) that accepts exactly what ``from_doc(cls, ...)`` accepts."""
    defs: dict[str, Json] = {}
    root = _schema(cls, defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": dict(sorted(defs.items())),
    }


def _schema(hint: Any, defs: dict[str, Json]) -> dict[str, Json]:
    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint is Any:
        return {}
    if hint in plain:
        return {"type": plain[hint]}
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return {"anyOf": [_schema(inner, defs), {"type": "null"}]}
    if origin in (tuple, frozenset):
        return {"type": "array", "items": _schema(typing.get_args(hint)[0], defs)}
    if origin is not None and issubclass(origin, Mapping):
        return {
            "type": "object",
            "additionalProperties": _schema(typing.get_args(hint)[1], defs),
        }
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        defs[hint.__name__] = {"enum": [str(m) for m in hint]}
        return {"$ref": f"#/$defs/{hint.__name__}"}
    name = hint.__name__
    if name not in defs:
        defs[name] = {}  # set before recursing, so that recursive types would end
        fields = dataclasses.fields(hint)
        hints = _hints(hint)
        required = [
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        defs[name] = {
            "type": "object",
            "additionalProperties": False,
            "required": required,
            "properties": {f.name: _schema(hints[f.name], defs) for f in fields},
        }
    return {"$ref": f"#/$defs/{name}"}
