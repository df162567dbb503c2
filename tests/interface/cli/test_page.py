"""The HTML pages in a real browser: they render without a network, and can be filtered, sorted and
printed.
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.interface.cli.main import main
from harness.interface.report.page.page import render
from harness.record import RunRecord
from harness.record.store import load

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
    """Return the rules of serious and critical impact that axe-core finds violated in a page."""
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None
    code = Path(spec.origin).with_name("axe.min.js").read_text()
    script = "JSON.stringify(r.violations.map(v=>[v.id,v.impact]))"
    run = f"axe.run().then(r=>{{document.body.dataset.axe={script}}})"
    page.write_text(
        document.replace("</body>", f"<script>{code}</script><script>{run}</script></body>")
    )
    dom = browse(page, "--virtual-time-budget=20000", "--dump-dom", *arguments)
    match = re.search(r'data-axe="([^"]*)"', dom)
    assert match, "axe did not run"
    return [rule for rule, impact in json.loads(html.unescape(match[1])) if impact != "minor"]


def test_axe_finds_only_the_injected_accessibility_violation(
    sample_run: RunRecord, tmp_path: Path
) -> None:
    document, page = render(sample_run), tmp_path / "report.html"
    assert axe(page, document) == []
    assert axe(page, document.replace("<h2", '<img src="data:,"><h2', 1)) == ["image-alt"]


@pytest.mark.full
def test_axe_finds_no_serious_violation_in_dark_mode(sample_run: RunRecord, tmp_path: Path) -> None:
    dark = "--blink-settings=preferredColorScheme=0"
    assert axe(tmp_path / "report.html", render(sample_run), dark) == []


def test_page_renders_and_its_filter_works(sample_run: RunRecord, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    script = (
        "<script>const f=document.getElementById('filter');f.value='pass';"
        "f.dispatchEvent(new Event('input'));"
        "document.body.dataset.shown=[...document.querySelectorAll('#verdicts tbody')]"
        ".filter(r=>!r.hidden).length;"
        "document.querySelectorAll('#verdicts th button')[1].click();"
        "document.body.dataset.first=document.querySelector('#verdicts tbody tr td:nth-child(2)').textContent;"
        "document.body.dataset.wide=document.documentElement.scrollWidth<=window.innerWidth;</script>"
    )
    page.write_text(render(sample_run).replace("</body>", f"{script}</body>"))
    dom = browse(page, "--window-size=1200,2000", "--dump-dom")
    assert 'data-shown="1"' in dom, "the filter must show the only PASS"
    assert 'data-wide="true"' in dom, "the page must not be wider than the window"
    values = sorted(v.value for v in sample_run.verdicts if v.value is not None)
    assert f'data-first="{values[0]:.3f}"' in dom
    assert dom.count("<svg") >= 5


def test_screenshot_is_not_blank(sample_run: RunRecord, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(sample_run))
    browse(page, "--window-size=1200,1600", f"--screenshot={tmp_path}/page.png")
    assert (tmp_path / "page.png").stat().st_size > 30_000


@pytest.fixture(scope="module")
def pages(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return three pages: the report of a run, a comparison of two machines, and an acceptance
    document.
    """
    place = tmp_path_factory.mktemp("pages")
    other = sample.with_name("ddp-nano-again")
    report = place / "report.html"
    report.write_text(render(load(sample), sample))
    machines = [
        "compare",
        "machines",
        str(sample),
        str(other),
        "--price",
        "A=3.5",
        "--price",
        "B=2",
    ]
    assert main([*machines, "--page", str(place / "machines.html")]) == 0
    main(["accept", "report", str(sample), str(other), "--to", str(place / "acceptance")])
    return {
        "report": report, "machines": place / "machines.html",
        "handover": place / "acceptance" / "handover.html",
    }  # fmt: skip


NAMES = ("report", "machines", "handover")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_no_console_messages_and_can_be_printed(
    pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    page = tmp_path / f"{name}.html"
    page.write_text(pages[name].read_text())
    assert console(page) == []
    browse(page, f"--print-to-pdf={tmp_path}/page.pdf")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed[:5] == b"%PDF-" and len(printed) > 20_000
    broken = page.read_text().replace("</body>", "<script>nowhere()</script></body>")
    page.write_text(broken)
    assert any("nowhere" in line for line in console(page)), "the test must detect console messages"


def console(page: Path) -> list[str]:
    """Return the console messages of a page and its scripts."""
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, "--enable-logging=stderr", f"--user-data-dir={page.parent}/profile",
         "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("name", NAMES[1:])
def test_axe_finds_no_serious_violation_in_the_other_pages(
    pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    assert axe(tmp_path / "page.html", pages[name].read_text()) == []


def test_a_link_opens_the_page_of_its_case(pages: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "<script>const link=document.querySelector('#verdicts a[href^=\"#case\"]');link.click();"
        "setTimeout(()=>{const at=document.getElementById(link.hash.slice(1));"
        "document.body.dataset.opened=at.open;"
        "document.body.dataset.high=at.querySelector('svg').getBoundingClientRect().height>40},300)"
        "</script>"
    )
    page = tmp_path / "report.html"
    page.write_text(pages["report"].read_text().replace("</body>", f"{script}</body>"))
    dom = browse(page, "--virtual-time-budget=3000", "--dump-dom")
    assert 'data-opened="true"' in dom and 'data-high="true"' in dom


def test_the_comparison_of_machines_can_be_filtered_and_sorted(
    pages: dict[str, Path], tmp_path: Path
) -> None:
    script = (
        "<script>const cells=()=>[...document.querySelectorAll('[aria-label=cases] tbody tr')];"
        "document.querySelectorAll('[aria-label=cases] th button')[3].click();"
        "const v=cells().map(r=>parseFloat(r.cells[3].dataset.v));"
        "document.body.dataset.sorted=v.every((x,i)=>!i||v[i-1]<=x);"
        "const f=document.getElementById('filter');f.value='single/';f.dispatchEvent(new Event('input'));"
        "document.body.dataset.shown=cells().filter(r=>!r.hidden).length</script>"
    )
    page = tmp_path / "machines.html"
    page.write_text(pages["machines"].read_text().replace("</body>", f"{script}</body>"))
    dom = browse(page, "--dump-dom")
    assert 'data-sorted="true"' in dom
    assert int(re.search(r'data-shown="(\d+)"', dom)[1]) == 2, (
        "every row must contain the name of its case"
    )  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_pages_fit_into_a_narrow_window(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    script = "<script>document.body.dataset.wide=document.documentElement.scrollWidth<=window.innerWidth</script>"
    page = tmp_path / "page.html"
    page.write_text(pages[name].read_text().replace("</body>", f"{script}</body>"))
    assert 'data-wide="true"' in browse(page, "--window-size=480,1600", "--dump-dom")


def test_a_page_that_cannot_be_written_is_reported(copy: Path) -> None:
    """The limit of a file's size lets the screen be printed, but not the page be written."""
    line = f'ulimit -f 20; exec "{sys.executable}" -m harness report "{copy}"'
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=copy.parent)
    assert ended.returncode == 0 and " page    not written, File too large: " in ended.stdout
    assert not (copy / "report.html").exists()
