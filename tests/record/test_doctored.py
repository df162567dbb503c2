"""Manipulated records are refused or reported, whatever the forger recomputed to hide the change.

There are two depths: the record is edited and its digest recomputed, as a careful forger would do;
and the chain is rebuilt to match. Only a signature detects a complete forgery (test_signature).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.verify import verify
from harness.base.errors import RecordError
from harness.record import chain
from harness.record.store import load
from tests.editing import change, rechain, write_doc

Doc = Any
Edit = Callable[[Doc, Path], None]


def told(folder: Path) -> list[str]:
    """Return the differences that verify finds, or the error if the record cannot be read."""
    try:
        return list(verify(load(folder), folder).differences)
    except RecordError as error:
        return [str(error)]


def doctored(folder: Path, edit: Edit) -> Doc:
    return change(folder, lambda doc: edit(doc, folder))


def timed(doc: Doc, arm: str | None = None) -> list[Doc]:
    return [x for x in doc["launches"] if x["purpose"] == "timed" and arm in (None, x["arm"])]


def purposed(doc: Doc, purpose: str) -> Doc:
    return next(x for x in doc["launches"] if x["purpose"] == purpose)


def without(chosen: Callable[[Doc], list[Doc]]) -> Edit:
    def edit(doc: Doc, _: Path) -> None:
        gone = [x["launch"] for x in chosen(doc)]
        doc["launches"] = [x for x in doc["launches"] if x["launch"] not in gone]

    return edit


def setting(*path: Any, to: Any) -> Edit:
    """Return an edit that sets the value at the end of a path of keys."""

    def edit(doc: Doc, _: Path) -> None:
        for key in path[:-1]:
            doc = doc[key]
        doc[path[-1]] = to

    return edit


def on_launch(purpose: str, change_it: Callable[[Doc], object]) -> Edit:
    def edit(doc: Doc, _: Path) -> None:
        change_it(purposed(doc, purpose))

    return edit


def last_turn_lost(doc: Doc, _: Path) -> None:
    turn = max(x["turn"] for x in timed(doc))
    doc["launches"] = [x for x in doc["launches"] if x["purpose"] != "timed" or x["turn"] != turn]


def repaired(doc: Doc, _: Path) -> None:
    """Pair slow launches with slow ones by swapping turns within an arm."""
    first, second = timed(doc, "@2")[:2]
    first["turn"], second["turn"] = second["turn"], first["turn"]


def swapped(doc: Doc, _: Path) -> None:
    launches = doc["launches"]
    launches[-1], launches[-2] = launches[-2], launches[-1]


def best_copied(doc: Doc, folder: Path) -> None:
    best, *others = sorted(timed(doc, "@2"), key=lambda x: x["ranks"][0]["window_s"])
    for x in others:
        x.update(ranks=best["ranks"], steps=best["steps"], consumed=best["consumed"])
        shutil.rmtree(folder / "launches" / x["launch"])
        shutil.copytree(folder / "launches" / best["launch"], folder / "launches" / x["launch"])


def faster(doc: Doc, folder: Path) -> None:
    """Make the samples of one arm 40 % faster and recompute the digests and figures that are easy
    to redo.
    """
    for x in timed(doc, "@2"):
        for r in x["ranks"]:
            path = folder / "launches" / x["launch"] / f"rank{r['rank']}.npz"
            with np.load(path) as arrays:
                kept = dict(arrays)
            kept["marks_s"] = kept["marks_s"] / 1.4
            kept["step_s"] = kept["step_s"] / 1.4
            np.savez_compressed(path, **kept)
            r["samples_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            r["window_s"] /= 1.4
        for key in ("mean_s", "median_s", "p95_s", "worst_s"):
            x["steps"][key] /= 1.4


def one_instant(doc: Doc, _: Path) -> None:
    for x in doc["launches"]:
        x.update(started_at="2020-01-01T00:00:00.000+00:00", wall_s=0.001)


def renamed_host(doc: Doc, _: Path) -> None:
    doc["machine"]["host"] = "fast-machine"


def renamed_ranks(doc: Doc, _: Path) -> None:
    for x in doc["launches"]:
        for r in x["ranks"]:
            r["host"] = "fast-machine"


def extra_folder(_: Doc, folder: Path) -> None:
    (folder / "launches" / "abcdef-t09-2-0099").mkdir()


def easier(doc: Doc, _: Path) -> None:
    for rule in doc["thresholds"]:
        if rule.get("at_least"):
            rule["at_least"] *= 0.5


def passing(doc: Doc, _: Path) -> None:
    for v in doc["verdicts"]:
        v["status"] = "PASS"


def older(doc: Doc, _: Path) -> None:
    """Claim an older schema, whose verdicts cannot be judged again, and set them all to PASS."""
    doc["schema"] = 5
    for v in doc["verdicts"]:
        v.update(status="PASS", reason="met", value=0.99, low=0.985, high=0.995)


def gate_passed(doc: Doc, _: Path) -> None:
    checks = purposed(doc, "gate")["ranks"][0]["checks"]
    checks[:] = checks[:3]


def gate_figure(doc: Doc, _: Path) -> None:
    checks = purposed(doc, "gate")["ranks"][0]["checks"]
    next(c for c in checks if c["limit"] == 0.0)["value"] = 1e308


#: Edits that verify finds even if the chain is rebuilt.
STRUCTURAL: dict[str, Edit] = {
    "an older schema, with any verdict": older,
    "a gate's figure beyond its limit": gate_figure,
    "the worst pair dropped": last_turn_lost,
    "one baseline launch dropped": without(lambda d: timed(d, "plain")[:1]),
    "one subject launch dropped": without(lambda d: timed(d, "@2")[-1:]),
    "a pilot dropped": without(lambda d: [purposed(d, "pilot")]),
    "a gate dropped": without(lambda d: [purposed(d, "gate")]),
    "the reference dropped": without(lambda d: [purposed(d, "reference")]),
    "a profile dropped": without(lambda d: [purposed(d, "profile")]),
    "slow launches paired with slow ones": repaired,
    "two launches swapped": swapped,
    "the best launch copied over the others": best_copied,
    "every launch at one instant": one_instant,
    "the ranks' host renamed": renamed_ranks,
    "the machine renamed": renamed_host,
    "an extra launch folder": extra_folder,
    "a verdict's status": passing,
    "a verdict's value": setting("verdicts", 0, "value", to=1.5),
    "a verdict's interval": setting("verdicts", 0, "low", to=0.99),
    "a verdict's pairs": setting("verdicts", 0, "pairs", to=[0.99] * 8),
    "a verdict lost": lambda d, _: d["verdicts"].pop(),
    "a window": on_launch("timed", lambda x: x["ranks"][0].update(window_s=0.1)),
    "samples consumed": on_launch("timed", lambda x: x.update(consumed=10**6)),
    "a mean step": on_launch("timed", lambda x: x["steps"].update(mean_s=1e-4)),
    "a 95th percentile": on_launch("timed", lambda x: x["steps"].update(p95_s=1e-4)),
    "the losses' digest": on_launch("timed", lambda x: x.update(losses="0" * 16)),
    "steadiness": on_launch("timed", lambda x: x["steadiness"].update(drift=0.5)),
    "load by others": on_launch("timed", lambda x: x.update(foreign_load=0.9)),
    "steps compared": on_launch("timed", lambda x: x.update(compared=0)),
    "stalls": on_launch("timed", lambda x: x.update(stalls=None)),
    "the cut": lambda d, _: [w.update(cut=w["cut"] + 1) for p in d["windows"].values() for w in p.values()],
    "the seed": lambda d, _: d["plans"][0]["protocol"].update(seed=7),
    "a launch into another attempt": on_launch("timed", lambda x: x.update(attempt=1)),
    "a launch into another block": on_launch("timed", lambda x: x.update(block=5)),
    "a launch for another purpose": on_launch("timed", lambda x: x.update(purpose="pilot")),
    "a block's order": lambda d, _: d["blocks"][0].update(arms=sorted(d["blocks"][0]["arms"])[::-1]),
    "a block lost": lambda d, _: d["blocks"].pop(),
    "a rank lost": lambda d, _: timed(d, "@2")[0]["ranks"].pop(),
    "what was wrong, added": on_launch("timed", lambda x: x.update(wrong=["world"])),
    "a launch that failed": on_launch("timed", lambda x: x.update(status="failed")),
}  # fmt: skip

#: Edits that the chain reveals; if the chain is rebuilt as well, only a signature reveals them.
CHAINED: dict[str, Edit] = {
    "samples of one arm 40 % faster": faster,
    "bounds lowered": easier,
    "a bound removed": lambda d, _: d["thresholds"].pop(),
    "a rule's source": setting("thresholds", 0, "source", to="measured"),
    "a rule's pattern": setting("thresholds", 0, "case", to="fsdp/*"),
    "checks of a gate": gate_passed,
    "a wider limit of the losses": lambda d, _: [
        a["reference"].update(limit=1.0) for a in d["described"].values()
    ],
    "an ideal": lambda d, _: [
        a["expected"].update(ideal_efficiency=0.5) for a in d["described"].values()
    ],
    "expected bytes": lambda d, _: [
        a["expected"].update(formula="less") for a in d["described"].values()
    ],
    "admission emptied": setting("admission", to=[]),
    "the date": setting("started_at", to="2026-01-01T00:00:00+00:00"),
    "the run's name": setting("run", to="20260101-000000-abcd"),
    "the settings": setting("settings", "strict", to=True),
    "the nonce": setting("settings", "nonce", to="somebody else's"),
    "the software": setting("software", "torch", to="3.0"),
    "the processor": setting("machine", "cpu", to="Better CPU"),
    "the memory of a rank": on_launch("timed", lambda x: x["ranks"][0].update(peak_bytes=1)),
    "bytes that a rank sent": on_launch("profile", lambda x: x["ranks"][0].update(resent_bytes=9)),
    "CPU time of a rank": on_launch("timed", lambda x: x["ranks"][0].update(setup_s=9.0)),
    "the schema": setting("schema", to=5),
    "the environment": lambda d, _: d["environment"].update(OMP_NUM_THREADS="3"),
    "the head": setting("head", to="0" * 64),
    "no head": setting("head", to=""),
}


def line_lost(lines: list[str]) -> list[str]:
    return lines[:7] + lines[8:]


@pytest.mark.parametrize("kind", [*STRUCTURAL, *CHAINED])
def test_an_edited_record_is_found(copy: Path, kind: str) -> None:
    before = (copy / "record.json").read_text()
    doctored(copy, (STRUCTURAL | CHAINED)[kind])
    assert kind == "an extra launch folder" or (copy / "record.json").read_text() != before
    assert told(copy), kind


@pytest.mark.parametrize("kind", STRUCTURAL)
def test_it_is_found_even_if_the_chain_is_rebuilt(copy: Path, kind: str) -> None:
    doctored(copy, STRUCTURAL[kind])
    rechain(copy)
    assert told(copy), kind


def test_a_chain_rebuilt_from_an_unchanged_record_verifies(copy: Path) -> None:
    """Without this, the test above could pass because rebuilding a chain always fails."""
    rechain(copy)
    assert told(copy) == []


@pytest.mark.parametrize(
    "edit",
    [
        line_lost,
        lambda lines: lines[:7] + lines[6:],
        lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [lines[0].replace('"strict":false', '"strict":true'), *lines[1:]],
        lambda lines: [*lines[:9], lines[9].replace('"wall_s":', '"wall_s":1'), *lines[10:]],
        lambda lines: [*lines, "not a link"],
        lambda lines: [*lines[:4], "{}", *lines[5:]],
        lambda lines: [],
    ],
    ids=["lost", "twice", "swapped", "end cut", "start cut", "rules", "launch", "text", "empty", "none"],
)  # fmt: skip
def test_an_edited_chain_is_found(copy: Path, edit: Callable[[list[str]], list[str]]) -> None:
    path = copy / chain.FILE
    path.write_text("".join(f"{line}\n" for line in edit(path.read_text().splitlines())))
    assert told(copy)


def behind_the_end(folder: Path, *bodies: tuple[str, Doc]) -> None:
    """Append valid links after the last one."""
    path = folder / chain.FILE
    for kind, body in bodies:
        lines = path.read_text().splitlines()
        link = {**json.loads(lines[-1]), "kind": kind, "body": body, "number": len(lines)}
        link["before"] = hashlib.sha256(lines[-1].encode()).hexdigest()
        text = json.dumps(link, sort_keys=True, separators=(",", ":"))
        path.write_text("".join(f"{line}\n" for line in [*lines, text]))


@pytest.mark.parametrize("moved", [False, True], ids=["head kept", "head moved"])
def test_blocks_that_follow_the_end_are_found(copy: Path, moved: bool) -> None:
    """Otherwise blocks that were added after signing would be judged with the rest."""
    doc = json.loads((copy / "record.json").read_text())
    block = {**doc["blocks"][-1], "number": len(doc["blocks"])}
    behind_the_end(copy, ("block", block), ("ended", {"notes": [], "out_of_time": []}))

    def more(doc: Doc, folder: Path) -> None:
        doc["blocks"].append(block)
        if moved:
            last = (folder / chain.FILE).read_text().splitlines()[-1]
            doc["head"] = hashlib.sha256(last.encode()).hexdigest()

    doctored(copy, more)
    assert any("the chain continues after" in text for text in told(copy))


def test_the_head_is_the_end_of_the_chain(copy: Path) -> None:
    lines = (copy / chain.FILE).read_text().splitlines()
    third = hashlib.sha256(lines[2].encode()).hexdigest()
    doctored(copy, setting("head", to=third))
    assert any("the chain continues after the link" in text for text in told(copy))


def test_a_deleted_chain_is_reported(copy: Path) -> None:
    (copy / chain.FILE).unlink()
    assert any("is missing, although the record names" in t for t in told(copy))


def test_an_interrupted_run_verifies_wherever_it_was_interrupted(copy: Path) -> None:
    """Cut the chain after every link, with the next link absent or torn, and with an older record."""
    lines = (copy / chain.FILE).read_text().splitlines()
    whole = json.loads((copy / "record.json").read_text())
    honest = 0
    for n in range(3, len(lines)):
        for m in range(max(3, n - 3), n + 1):
            kinds = [json.loads(line)["kind"] for line in lines[:m]]
            doc = {
                **whole, "complete": False, "verdicts": [],
                "head": hashlib.sha256(lines[m - 1].encode()).hexdigest(),
                "launches": whole["launches"][: kinds.count("launch")],
                "blocks": whole["blocks"][: kinds.count("block")],
                "windows": whole["windows"] if "windows" in kinds else {},
            }  # fmt: skip
            write_doc(copy, doc)
            torn = lines[n][: len(lines[n]) // 2] if m % 2 else ""
            (copy / chain.FILE).write_text("".join(f"{line}\n" for line in lines[:n]) + torn)
            differences = [t for t in told(copy) if "verdicts recorded" not in t]
            assert differences == [], (n, m)
            honest += 1
    assert honest > 90


@pytest.mark.parametrize(
    ("purpose", "why"),
    [
        ("stalled", "timed again, but the host had not stood still"),
        ("flaked", "launched once more, but had no transient failure"),
    ],
)
def test_relabelling_a_slow_launch_is_found(copy: Path, purpose: str, why: str) -> None:
    def hide(doc: Doc, _: Path) -> None:
        slow = next(x for x in doc["launches"] if x["purpose"] == "timed")
        slow["purpose"] = purpose

    doctored(copy, hide)
    rechain(copy)
    assert any(why in text for text in told(copy))
