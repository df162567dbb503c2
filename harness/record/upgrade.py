"""Records of older versions of this program, brought to today's layout."""

from __future__ import annotations

from harness.base.documents import Json, from_doc
from harness.spec import Plan, digest


def upgrade(doc: Json, newest: int) -> Json:
    """Bring an older document to this layout; newer ones are refused.

    ``schema`` keeps its number: verdicts of an older record were judged by the rules of its day,
    and ``verify`` says so. 1 -> 2 -> 3 -> 4: everything new has a default.
    """
    schema = doc.get("schema") if isinstance(doc, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise ValueError("not a record: no schema number")
    if schema > newest:
        raise ValueError(f"schema {schema} is newer than this program reads ({newest}); upgrade it")
    return _rename_plans(doc) if schema < 3 else doc


def _rename_plans(doc: Json) -> Json:
    """Until schema 2 a plan's hash was of its whole document, also of fields at their default."""
    new = {digest(p): from_doc(Plan, p, "record.plans").hash for p in doc.get("plans", ())}
    for kind in ("launches", "verdicts"):
        doc[kind] = [{**x, "plan": new.get(x["plan"], x["plan"])} for x in doc.get(kind, ())]
    doc["windows"] = {new.get(k, k): v for k, v in doc.get("windows", {}).items()}
    doc["out_of_time"] = [new.get(k, k) for k in doc.get("out_of_time", ())]
    return doc
