"""Conversion of records that older versions of this program wrote."""

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields

from harness.base.documents import Json, from_doc, lean
from harness.cases import Plan, Settings, digest

#: The first schema that is read without conversion.
UNCHANGED_SINCE = 6


def upgrade(doc: Json, newest: int) -> Json:
    """Convert the document of an older record to the present layout.

    Raises ValueError if the document is newer than this program or invalid. ``schema`` keeps its
    number, because the verdicts of an older record were judged by older rules, and ``verify``
    reports that.

    Schemas 2 to 4 only added fields with defaults. Until schema 4, settings were strings, and only
    their position distinguished the second set of sweeps and trials from the first. Schema 6
    changed the evidence for a PASS.
    """
    schema = doc.get("schema") if isinstance(doc, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError("not a record: no schema number")
    if schema > newest:
        raise ValueError(
            f"schema {schema} is newer than this program reads ({newest}); upgrade the program"
        )
    try:
        doc = _rename_plans(doc, _whole) if schema < 3 else doc
        doc = _typed(doc) if schema < 5 else doc
        return _rename_plans(doc, _usually_four_blocks) if schema < UNCHANGED_SINCE else doc
    except (LookupError, TypeError, AttributeError, SyntaxError) as error:
        raise ValueError(f"does not have the layout of schema {schema}: {error!r}") from None


def _rename_plans(doc: Json, old_hash: Callable[[Json], str]) -> Json:
    """Replace the hashes of plans by those of the present version."""
    new = {old_hash(p): from_doc(Plan, p, "record.plans").hash for p in doc.get("plans", ())}
    for kind in ("launches", "verdicts"):
        doc[kind] = [{**x, "plan": new.get(x["plan"], x["plan"])} for x in doc.get(kind, ())]
    doc["windows"] = {new.get(key, key): value for key, value in doc.get("windows", {}).items()}
    doc["out_of_time"] = [new.get(k, k) for k in doc.get("out_of_time", ())]
    return doc


def _whole(plan: Json) -> str:
    """Return the hash that a plan had until schema 2, which included fields with default values."""
    return digest(plan)


def _usually_four_blocks(plan: Json) -> str:
    """Return the hash that a plan had until schema 5. ``min_blocks`` had the default 4 then."""
    least = plan["protocol"].setdefault("min_blocks", 4)
    doc = lean(from_doc(Plan, plan, "record.plans"))
    doc["protocol"].pop("min_blocks", None)
    if least != 4:
        doc["protocol"]["min_blocks"] = least
    return digest(doc)


#: Number of sweeps or trials in the first set, until schema 4. Later sweeps or trials belong to the
#: second set, which confirms a FAIL.
_FIRST = 8


def _typed(doc: Json) -> Json:
    """Convert settings from strings to their types, and add the attempt of sweeps and trials."""
    texts = doc.get("settings", {})
    known = {field.name for field in fields(Settings)}
    settings = {key: _value(key, text) for key, text in texts.items() if key in known}
    doc["settings"] = {key: setting for key, setting in settings.items() if setting is not None}
    sweeps: dict[Json, list[Json]] = {}
    for row in doc.get("fabric", ()):
        key = (tuple(row["nodes"]), row.get("network", ""), row["operation"])
        launches = sweeps.setdefault(key, [])
        if (launch := row.get("launch", 0)) not in launches:
            launches.append(launch)
        row.setdefault("attempt", int(launches.index(launch) >= _FIRST))
        if texts.get("engine") == "emulated":
            rate = re.search(r"rate_mbit=([\d.e+]+)", row.get("network", ""))
            row["link_mbit"] = float(rate[1]) if rate else 1000.0
    trials = Counter[Json]()
    for t in doc.get("recoveries", ()):
        kind = (t["case"], t["fault"], t.get("asynchronous"), t["world_before"], t["world"])
        t.setdefault("attempt", int(trials[kind] >= _FIRST))
        trials[kind] += 1
    return doc


def _value(name: str, text: Json) -> Json:
    """Return the value of a setting that was written as ``str(value)``.

    A value that is not a string is returned unchanged.
    """
    if not isinstance(text, str):
        return text
    if text == "None":
        return None
    if name == "argv":
        return text.split(" ")
    if name in ("engine", "device", "cluster"):
        return text
    value = ast.literal_eval(text)
    return list(value) if isinstance(value, tuple) else value
