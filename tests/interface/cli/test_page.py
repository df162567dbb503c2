"""The HTML page in a real browser: it renders without a network, filters and sorts."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.interface.report.page.page import render
from harness.record import RunRecord

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: bash scripts/system-packages.sh"
)


def browse(page: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={page.parent}/profile",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def axe(page: Path, document: str, *arguments: str) -> list[str]:
    """What axe-core finds in a page: its rules of serious and critical impact."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None
    code = Path(spec.origin).with_name("axe.min.js").read_text()
    told = "JSON.stringify(r.violations.map(v=>[v.id,v.impact]))"
    run = f"axe.run().then(r=>{{document.body.dataset.axe={told}}})"
    page.write_text(
        document.replace("</body>", f"<script>{code}</script><script>{run}</script></body>")
    )
    dom = browse(page, "--virtual-time-budget=20000", "--dump-dom", *arguments)
    found = re.search(r'data-axe="([^"]*)"', dom)
    assert found, "axe did not run"
    return [rule for rule, impact in json.loads(html.unescape(found[1])) if impact != "minor"]


def test_axe_finds_nothing_serious_but_what_is_planted(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    document, page = render(sample_run), tmp_path / "report.html"
    assert axe(page, document) == []
    assert axe(page, document.replace("<h2", '<img src="data:,"><h2', 1)) == ["image-alt"]


@pytest.mark.full
def test_axe_finds_nothing_serious_in_the_dark(sample_run: RunRecord, tmp_path: Path) -> None:
    dark = "--blink-settings=preferredColorScheme=0"
    assert axe(tmp_path / "report.html", render(sample_run), dark) == []


def test_page_renders_and_its_filter_works(sample_run: RunRecord, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    script = (
        "<script>const f=document.getElementById('filter');f.value='pass';"
        "f.dispatchEvent(new Event('input'));"
        "document.body.dataset.shown=[...document.querySelectorAll('#verdicts tbody tr')]"
        ".filter(r=>!r.hidden).length;"
        "document.querySelectorAll('#verdicts th button')[1].click();"
        "document.body.dataset.first=document.querySelector('#verdicts tbody tr td:nth-child(2)').textContent;"
        "document.body.dataset.wide=document.documentElement.scrollWidth<=window.innerWidth;</script>"
    )
    page.write_text(render(sample_run).replace("</body>", f"{script}</body>"))
    dom = browse(page, "--window-size=1200,2000", "--dump-dom")
    assert 'data-shown="1"' in dom, "one verdict is a PASS"
    assert 'data-wide="true"' in dom, "nothing runs out of the window"
    values = sorted(v.value for v in sample_run.verdicts if v.value is not None)
    assert f'data-first="{values[0]:.3f}"' in dom
    assert dom.count("<svg") >= 5


def test_screenshot_is_not_blank(sample_run: RunRecord, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(sample_run))
    browse(page, "--window-size=1200,1600", f"--screenshot={tmp_path}/page.png")
    assert (tmp_path / "page.png").stat().st_size > 30_000
