"""Records of older versions of this program, brought to today's layout."""

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields

from harness.base.documents import Json, from_doc, lean
from harness.cases import Plan, Settings, digest

#: The first layout that is read as it is.
UNCHANGED_SINCE = 6


def upgrade(doc: Json, newest: int) -> Json:
    """Bring an older document to this layout; newer ones are refused.

    ``schema`` keeps its number: verdicts of an older record were judged by the rules of its day,
    and ``verify`` says so. 1 -> 2 -> 3 -> 4: everything new has a default; until 4, settings
    were texts, and the second set of sweeps and trials was told from the first by its place;
    5 -> 6: a PASS asked for other evidence.
    """
    schema = doc.get("schema") if isinstance(doc, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError("not a record: no schema number")
    if schema > newest:
        raise ValueError(f"schema {schema} is newer than this program reads ({newest}); upgrade it")
    try:
        doc = _rename_plans(doc, _whole) if schema < 3 else doc
        doc = _typed(doc) if schema < 5 else doc
        return _rename_plans(doc, _usually_four_blocks) if schema < UNCHANGED_SINCE else doc
    except (LookupError, TypeError, AttributeError, SyntaxError) as error:
        raise ValueError(f"not laid out as schema {schema} was: {error!r}") from None


def _rename_plans(doc: Json, old_hash: Callable[[Json], str]) -> Json:
    """Renames plans by the hashes of today."""
    new = {old_hash(p): from_doc(Plan, p, "record.plans").hash for p in doc.get("plans", ())}
    for kind in ("launches", "verdicts"):
        doc[kind] = [{**x, "plan": new.get(x["plan"], x["plan"])} for x in doc.get(kind, ())]
    doc["windows"] = {new.get(key, key): value for key, value in doc.get("windows", {}).items()}
    doc["out_of_time"] = [new.get(k, k) for k in doc.get("out_of_time", ())]
    return doc


def _whole(plan: Json) -> str:
    """Until schema 2 a plan's hash was of its whole document, also of fields at their default."""
    return digest(plan)


def _usually_four_blocks(plan: Json) -> str:
    """Until schema 5 a plan got four blocks at least where nothing else was asked for."""
    least = plan["protocol"].setdefault("min_blocks", 4)
    doc = lean(from_doc(Plan, plan, "record.plans"))
    doc["protocol"].pop("min_blocks", None)
    if least != 4:
        doc["protocol"]["min_blocks"] = least
    return digest(doc)


#: Until schema 4, sweeps or trials beyond so many were the set that confirms a FAIL.
_FIRST = 8


def _typed(doc: Json) -> Json:
    """Settings as they are typed today, and the attempt of sweeps and trials."""
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
    """A setting that was written as ``str(value)``; as it is, if it was typed already."""
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
