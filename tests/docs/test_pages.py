"""The reference pages and drawings match the code, and every page is in the index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_pages_and_drawings_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "100"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    index, site = (DOCS / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in sorted(p.name for p in DOCS.glob("*.md") if p.name != "index.md"):
        assert f"]({page})" in index, f"docs/index.md does not name {page}"
        assert re.search(rf"\b{re.escape(page)}\b", site), f"mkdocs.yml does not name {page}"


def test_every_status_word_is_in_the_glossary() -> None:
    """One table has all status words of the commands, with their exit status."""
    from harness.analysis.compare import Reading
    from harness.features.foresight.claims import ClaimStatus as Claimed
    from harness.features.foresight.possible import Chance
    from harness.features.history.trends import TrendStatus as Trending
    from harness.record import Status

    page = (DOCS / "glossary.md").read_text()
    words = [*Status, *Claimed, *Chance, *Trending]
    words += [w for w in Reading if "only" not in w]
    assert [w for w in map(str, words) if w not in page] == []
