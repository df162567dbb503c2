"""Conversion of frozen dataclasses to and from JSON documents, and their JSON Schema."""

import contextlib
import dataclasses
import gc
import inspect
import json
from collections.abc import Iterator, Mapping
from enum import EnumType
from typing import Any, TypeVar, get_type_hints

import msgspec


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Disable the garbage collector inside the context.

    Documents have no reference cycles, so nothing is lost. Otherwise every collection would visit
    all objects read so far, and reading would take more than linear time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


T = TypeVar("T")

#: A JSON value. The type is not exact, because such values are read from files or other processes.
Json = Any


def to_doc(value: Any) -> Json:
    """Return the JSON document of a dataclass, or of a container of dataclasses.

    Sets are written in sorted order.
    """
    return msgspec.to_builtins(value, order="deterministic", enc_hook=_python)


def reads_as(value: Any, doc: Json) -> bool:
    """Return whether a file to which ``value`` is written would be read as ``doc``.

    The result is False if the value contains something that standard JSON cannot represent: NaN,
    infinity or a lone surrogate.
    """
    try:  # MessagePack instead of JSON, because msgspec writes infinity as null in JSON
        packed = msgspec.msgpack.encode(value, order="deterministic", enc_hook=_python)
    except (UnicodeEncodeError, OverflowError):
        return False
    return bool(msgspec.msgpack.decode(packed) == doc)


def says(doc: Json, value: Any) -> bool:
    """Return whether a document describes a value.

    This or an earlier version of the program wrote the document. Fields that the earlier version
    did not have must have their default values.
    """
    if reads_as(value, doc):
        return True
    if dataclasses.is_dataclass(value) and isinstance(doc, dict):
        fields = {field.name: field for field in dataclasses.fields(value)}
        return doc.keys() <= fields.keys() and all(
            says(doc[name], getattr(value, name))
            if name in doc
            else getattr(value, name) == _default(field)
            for name, field in fields.items()
        )
    if isinstance(value, Mapping) and isinstance(doc, dict):
        by_name = {str(key): part for key, part in value.items()}
        return doc.keys() == by_name.keys() and all(says(doc[key], by_name[key]) for key in doc)
    if isinstance(value, list | tuple) and isinstance(doc, list):
        return len(doc) == len(value) and all(map(says, doc, value))
    return bool(json.loads(json.dumps(to_doc(value))) == doc)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _python(value: Any) -> Any:
    """Return a scalar of numpy or torch, which a user's file may return, as a Python number."""
    return value.item()


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a mapping.

    ``vars`` would lack the fields for which msgspec used the default.
    """
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def lean(value: Any) -> Json:
    """Return the document of a value without fields that have their default value.

    Because of this, a new field with a default does not change the digests of older documents.
    """
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {f.name: lean(v) for f, v in fields if v != f.default}
    if isinstance(value, Mapping):
        return {key: lean(part) for key, part in value.items()}
    return [lean(v) for v in value] if isinstance(value, list | tuple) else to_doc(value)


def from_doc(cls: type[T], doc: Json, where: str = "") -> T:
    """Return the dataclass that a document describes.

    Raises ValueError, with the path of the mistake in the document, if the document does not fit
    the class. ``where`` is the first part of this path, by default the name of the class.
    """
    where = where or cls.__name__
    try:
        value = msgspec.convert(doc, cls)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        path = path.removesuffix("`")
        kind = get_type_hints(cls).get(path.removeprefix("."), cls)
        if isinstance(kind, EnumType) and (wrong := text.partition("enum value ")[2]):
            text = f"{wrong} is none of {', '.join(kind)}"
        raise ValueError(f"{where}{path}: {text}") from None
    if not reads_as(value, doc):  # some fields are missing or unknown
        _refuse_unknown(doc, to_doc(value), where)
    return value


def _refuse_unknown(doc: Json, known: Json, where: str) -> None:
    """Raise ValueError for a field of ``doc`` that the dataclass does not have."""
    if isinstance(known, dict):
        if unknown := sorted(set(doc) - set(known)):
            raise ValueError(f"{where}: unknown field {unknown[0]!r}")
        for key, value in doc.items():
            if isinstance(value, dict | list):
                _refuse_unknown(value, known[key], f"{where}.{key}")
    elif isinstance(known, list | tuple):
        for i, (value, understood) in enumerate(zip(doc, known, strict=False)):
            if isinstance(value, dict | list):
                _refuse_unknown(value, understood, f"{where}[{i}]")


def parsed(text: str) -> Json:
    """Return the value of a JSON text. Raise ValueError if it is invalid.

    NaN and infinity, which are no JSON, are read as well, by the slower parser.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def fields(text: bytes) -> dict[str, msgspec.Raw]:
    """Return the undecoded fields of a JSON object. Raise ValueError for other texts."""
    return _undecoded(text, dict[str, msgspec.Raw])


def elements(text: msgspec.Raw | bytes) -> list[msgspec.Raw]:
    """Return the undecoded elements of a JSON array. Raise ValueError for other texts."""
    return _undecoded(text, list[msgspec.Raw])


def _undecoded(text: msgspec.Raw | bytes, kind: type[T]) -> T:
    """Decode only the outermost level of a JSON text. Raise ValueError if it is invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def json_schema(cls: type, *, title: str) -> dict[str, Json]:
    """Return a JSON Schema (2020-12) that accepts what ``from_doc(cls, ...)`` accepts."""
    schema = closed(json.loads(json.dumps(msgspec.json.schema(cls))))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def schema_text(schema: Mapping[str, Json]) -> str:
    """Return a schema as text with one line for each definition or property.

    A diff of two schemas then shows which definitions or properties changed.
    """
    lines = []
    for key, value in schema.items():
        if isinstance(value, Mapping):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def closed(schema: Json) -> Json:
    """Return the schema with its keys in a fixed order and with unknown fields forbidden.

    The indentation of docstrings is removed, as Python 3.13 and later do themselves.
    """
    if isinstance(schema, list):
        return sorted(map(closed, schema), key=str)
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: value if key == "default" else closed(value) for key, value in sorted(schema.items())
    }
    if "prefixItems" in schema:  # the order of a tuple's elements matters
        inner["prefixItems"] = [closed(place) for place in schema["prefixItems"]]
    if isinstance(description := inner.get("description"), str):
        inner["description"] = inspect.cleandoc(description)
    return {**inner, "additionalProperties": False} if "properties" in inner else inner
