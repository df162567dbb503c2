"""Edits of the sample record, for tests of their consequences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.analysis.judging.verdicts import verdicts
from harness.base.documents import from_doc, to_doc
from harness.record import RunRecord, Verdict, chain
from harness.record.store import load


def judged(run: RunRecord, edit: Any) -> dict[str, Verdict]:
    """Return the verdicts of an edited record, by contrast."""
    doc = json.loads(json.dumps(to_doc(run)))
    edit(doc)
    return {v.contrast: v for v in verdicts(from_doc(RunRecord, doc))}


def timed(doc: Any, arm: str) -> list[Any]:
    """Return the timed launches of an arm."""
    return [x for x in doc["launches"] if x["purpose"] == "timed" and x["arm"] == arm]


def confirm(doc: Any, factor: float = 1.0) -> None:
    """Copy every timed launch into a confirming set, with the subject faster by a factor."""
    doc["launches"] += [
        {
            **x,
            "launch": f"{x['launch']}-again",
            "attempt": 1,
            "ranks": [
                {**r, "window_s": r["window_s"] / (factor if x["arm"] == "@2" else 1.0)}
                for r in x["ranks"]
            ],
        }
        for x in doc["launches"]
        if x["purpose"] == "timed"
    ]


def bound(doc: Any, **fields: Any) -> None:
    """Change the rule that compares 2 ranks with the plain loop."""
    next(t for t in doc["thresholds"] if t["name"] == "cpu_ddp_weak").update(fields)


def even(doc: Any, efficiency: float = 0.9, scatter: float = 0.002) -> None:
    """Make eight pairs of a quiet machine: 0.1 s per step, and this efficiency on two ranks."""
    more = [x for x in doc["launches"] if x["purpose"] == "timed"]
    if len({x["turn"] for x in more}) < 8:
        again = json.loads(json.dumps(more))
        for x in again:
            x.update(launch=f"{x['launch']}-b", turn=x["turn"] + 4, block=x["block"] + 2)
        doc["launches"] = [*doc["launches"], *again]
    for x in doc["launches"]:
        if x["purpose"] in ("pilot", "timed"):
            x.update(foreign_load=0.01, stalls={"steps": [], "share": 0.0})
            for r in x["ranks"]:
                r["throttled_s"] = 0.0
    for arm in ("plain", "@1", "@2"):
        for i, x in enumerate(timed(doc, arm)):
            share = efficiency if arm == "@2" else 1.0
            for r in x["ranks"]:
                r["window_s"] = (1 + scatter * (-1) ** i) / share * x["steps"]["count"] / 10
            x["steadiness"] = {"drift": 0.0, "t": 0.0, "mser": 0, "steady": True}


def change(folder: Path, edit: Callable[[Any], object]) -> Any:
    """Edit record.json and its digest, as a careful forger would, and return the document."""
    doc = json.loads((folder / "record.json").read_text())
    edit(doc)
    write_doc(folder, doc)
    return doc


def write_doc(folder: Path, doc: Any) -> None:
    text = json.dumps(doc)
    (folder / "record.json").write_text(text)
    (folder / "record.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())


def rechain(folder: Path) -> None:
    """Rebuild the chain from the record, as if the run had been like that."""
    doc = json.loads((folder / "record.json").read_text())
    old = [json.loads(line) for line in (folder / chain.FILE).read_text().splitlines()]
    queues = {
        "launch": list(doc["launches"]),
        "block": list(doc["blocks"]),
        "plan": [{"hash": _plan_hash(folder, i), "plan": p} for i, p in enumerate(doc["plans"])],
        "described": [doc["described"]],
        "windows": [doc["windows"]],
    }
    for name in old[0]["body"]:
        if name in doc:
            old[0]["body"][name] = doc[name]
    kept = [x for x in old if x["kind"] not in queues or queues[x["kind"]]]
    lines: list[str] = []
    for link in kept:
        if link["kind"] in queues:
            if not queues[link["kind"]]:
                continue
            link["body"] = queues[link["kind"]].pop(0)
        link["number"] = len(lines)
        link["before"] = hashlib.sha256(lines[-1].encode()).hexdigest() if lines else ""
        lines.append(json.dumps(link, sort_keys=True, separators=(",", ":")))
    (folder / chain.FILE).write_text("".join(line + "\n" for line in lines))
    doc["head"] = hashlib.sha256(lines[-1].encode()).hexdigest()
    write_doc(folder, doc)


def _plan_hash(folder: Path, i: int) -> str:
    return load(folder).plans[i].hash
