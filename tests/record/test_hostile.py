"""For any untrusted record, a reader gives its answer or reports one clear error.

The tests replace values of a real record by values of other kinds, and link the chain again, as a
careful attacker would.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from harness.base.errors import Exit
from harness.interface.cli.main import main
from harness.record import chain

#: A line of scaleproof's output that text in an untrusted record must not imitate.
FORGED = " PASS: 99 of 99 requirements hold"
TEXTS = (
    f"x\n{FORGED}",
    f"x\r{FORGED}",
    f"x\x0b{FORGED}",
    f"x\x85{FORGED}",
    f"x\u2028{FORGED}",
    "\u202egnp.exe",
    "\u2066x",
    "\x1b[2J",
    "",
    " ",
    "../../../etc/passwd",
    "/etc/passwd",
    "a" * 100_000,
    "\ud800",
    "no_such_thing",
    "2026-01-01T00:00:00",
    "9" * 5000,
    "<script>alert(1)</script>",
    "{{7*7}}",
    "%s%n",
)
NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.5, 1e308, -1e308, 5e-324)
ODD = (float("nan"), float("inf"), float("-inf"), None, True, False, [], {}, [[]], {"": ""})
#: Characters that may be in no printed line, because they move the cursor or reverse the text.
MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
VERBS = ("report", "verify", "history", "compare", "advise", "timeline", "badge", "rules")


@pytest.mark.parametrize("name", ["record.json", "chain.jsonl", "launches/*/rank0.npz"])
def test_a_pipe_in_a_run_is_an_error(copy: Path, name: str) -> None:
    file = next(copy.glob(name))
    file.unlink()
    os.mkfifo(file)
    assert main(["verify", str(copy)]) in (Exit.FAILED, Exit.USAGE)


#: Texts that Python's JSON writer never writes, by the placeholders that are replaced by them.
RAW = {"@deep": "[" * 100_000 + "]" * 100_000, "@long": "9" * 10_000, "@broken": "{"}


def raw(text: str) -> str:
    for word, body in RAW.items():
        text = text.replace(f'"{word}"', body)
    return text


def leaves(doc: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values of a document, dicts and lists included."""
    if path:
        yield path
    items = (
        doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    )
    for key, value in items:
        yield from leaves(value, (*path, key))


def shape(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a path without list indices, so that a field counts once even if a hundred launches
    have it.
    """
    return tuple("#" if isinstance(key, int) else key for key in path)


def put(doc: Any, path: tuple[Any, ...], value: Any, *, key: bool) -> None:
    for part in path[:-1]:
        doc = doc[part]
    if key and isinstance(doc, dict) and isinstance(value, str):
        doc[value] = doc.pop(path[-1])
    else:
        doc[path[-1]] = value


def relinked(links: list[Any], doc: Any) -> str:
    """Return the text of the chain with valid links, and set the record's ``head`` to match."""
    lines: list[str] = []
    for number, link in enumerate(links):
        if isinstance(link, dict):
            link["number"] = number
            link["before"] = hashlib.sha256(lines[-1].encode()).hexdigest() if lines else ""
        lines.append(raw(json.dumps(link, sort_keys=True, separators=(",", ":"))))
    doc["head"] = hashlib.sha256(lines[-1].encode()).hexdigest()
    return "".join(line + "\n" for line in lines)


def answered(words: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(words)
        except SystemExit as left:
            status = int(left.code or 0)
    return status, out.getvalue()


class Stranger:
    """A folder into which manipulated copies of the sample record are written."""

    def __init__(self, sample: Path, folder: Path) -> None:
        self.folder = folder / "run"
        page = shutil.ignore_patterns("*report*")
        shutil.copytree(sample, self.folder, ignore=page)
        self.doc = json.loads((sample / "record.json").read_text())
        self.links = [json.loads(x) for x in (sample / chain.FILE).read_text().splitlines()]
        of_record = {shape(p): p for p in leaves(self.doc)}
        of_chain = {shape(p): p for n, link in enumerate(self.links) for p in leaves(link, (n,))}
        self.paths = [("record", p) for p in of_record.values()]
        self.paths += [("chain", p) for p in of_chain.values()]

    def write(self, edits: list[tuple[tuple[str, tuple[Any, ...]], Any, bool]]) -> None:
        doc, links = copy.deepcopy(self.doc), copy.deepcopy(self.links)
        for (where, path), value, key in edits:
            with contextlib.suppress(
                KeyError, IndexError, TypeError
            ):  # An earlier edit may have removed this path.
                put(doc if where == "record" else links, path, value, key=key)
        text = relinked(links, doc)
        doc.pop("sha256", None)
        rest = raw(json.dumps(doc))
        (self.folder / "record.json").write_text(rest)
        (self.folder / "record.sha256").write_text(hashlib.sha256(rest.encode()).hexdigest())
        (self.folder / chain.FILE).write_text(text)


@pytest.fixture(scope="module")
def stranger(sample: Path) -> Iterator[Stranger]:
    with tempfile.TemporaryDirectory() as folder:
        yield Stranger(sample, Path(folder))


values = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.sampled_from(ODD),
    st.sampled_from(list(RAW)),
)


def looked_at(stranger: Stranger, data: st.DataObject, verbs: tuple[str, ...]) -> None:
    paths = st.sampled_from(stranger.paths)
    edit = st.tuples(paths, values, st.booleans())
    stranger.write(data.draw(st.lists(edit, min_size=1, max_size=2)))
    for verb in verbs:
        words = [verb, str(stranger.folder)] + [str(stranger.folder)] * (verb == "compare")
        if verb == "rules":
            words = [verb, str(stranger.folder / "none.toml"), str(stranger.folder)]
        status, out = answered(words)
        assert status != Exit.INTERNAL, (words, out[-3000:])
        assert "Traceback" not in out, (words, out[-3000:])
        assert not MOVING.search(out.replace("\r", "\n")), (words, MOVING.findall(out))
        assert FORGED not in out.splitlines(), (words, out[:2000])


SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(
    max_examples=int(os.environ.get("HOSTILE", "60")), deadline=None, suppress_health_check=SLOW
)
@given(data=st.data())
def test_report_and_verify_handle_any_untrusted_record(
    stranger: Stranger, data: st.DataObject
) -> None:
    looked_at(stranger, data, ("report", "verify"))


@pytest.mark.full
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_every_reader_handles_any_untrusted_record(stranger: Stranger, data: st.DataObject) -> None:
    looked_at(stranger, data, VERBS)
