"""Each promise about behaviour after a failure names the test that checks it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_an_existing_test() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("| what happens |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(rows) >= 11
    for row in rows:
        held = re.search(r"`(test_\w+)` \|$", row)
        assert row.endswith("the same, of a node |") or (held and held[1] in known), row
