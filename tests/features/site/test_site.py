"""The site of all runs: what it shows of each, in a real browser without a server or a network."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.analysis import verify_cache
from harness.features.site import entries, pages
from harness.features.site.entries import SiteEntry
from harness.interface.cli.main import main
from harness.record import Status

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: bash scripts/system-packages.sh"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


@pytest.fixture(scope="module")
def results(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return results with two runs, a run without a chain, an unreadable run, and a page of several
    runs.
    """
    folder = tmp_path_factory.mktemp("results")
    for name in ("ddp-nano", "ddp-nano-again"):
        shutil.copytree(sample.with_name(name), folder / "runs/c607" / name)
    shutil.copytree(sample, folder / "runs/c607/unchained")
    (folder / "runs/c607/unchained/chain.jsonl").unlink()
    (folder / "runs/c607/torn").mkdir()
    (folder / "runs/c607/torn/record.json").write_text("{")
    (folder / "runs/c607/ddp-nano/report.html").write_text("<p>a page of its own")
    (folder / "history.html").write_text("<p>nights")
    (folder / "secret").write_text("<p>of the user")
    (folder / "runs/machines.html").symlink_to(folder / "secret")
    return folder


@pytest.fixture(scope="module")
def site(results: Path) -> Path:
    words = ["--to", str(results / "site"), "--name", "Team <A>"]
    assert main(["report", "site", str(results), *words]) == 1, "two of the runs do not verify"
    return results / "site"


def test_runs_that_do_not_verify_fail_the_command(
    results: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", str(site), "--name", "Team <A>", "--json"]
    assert main(["report", "site", str(results), *words]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["runs"] == 3
    (doubtful,) = document["not_verified"]
    assert doubtful.startswith("runs/c607/unchained: it has no chain")
    (unreadable,) = document["unreadable"]
    assert unreadable.startswith("runs/c607/torn: ")
    index = (site / "index.html").read_text()
    assert index.count('<li data-status="ERROR"') == 1
    assert "NOT VERIFIED" in index
    for page in set(pages.PAGES) - {"index.html"}:
        assert "unchained" not in (site / page).read_text(), (
            "other pages must not use figures of this run"
        )


def test_every_link_leads_to_a_file_of_the_site(site: Path) -> None:
    for page in pages.PAGES:
        text = (site / page).read_text()
        links = set(re.findall(r'href="([^"#]+)"', text))
        assert len(links) > 4
        for link in links:
            assert (site / link).is_file(), (page, link)
        assert not re.search(r'(src|href)="(https?:)?//', text), (
            "the page must load nothing from the network"
        )
        assert "<title>" in text and "Team &lt;A&gt;" in text and "Team <A>" not in text
    assert (site / "documents/history.html").is_file()


def test_a_run_is_verified_once_and_again_after_a_change(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "results"
    shutil.copytree(results / "runs/c607/ddp-nano", whole / "runs/a")
    read: list[Path] = []
    usual = verify_cache.vouched
    monkeypatch.setattr(
        verify_cache, "vouched", lambda folder: read.append(folder) or usual(folder)
    )
    assert main(["report", "site", str(whole), "--to", str(whole / "site")]) == 0
    assert main(["report", "site", str(whole), "--to", str(whole / "site")]) == 0
    assert len(read) == 1
    sample = next((whole / "runs/a/launches").glob("*/*.npz"))
    before = sample.stat()
    changed = bytearray(sample.read_bytes())
    changed[40] ^= 1
    sample.write_bytes(bytes(changed))
    # The file keeps its times, and one byte differs.
    os.utime(sample, ns=(before.st_atime_ns, before.st_mtime_ns))
    main(["report", "site", str(whole), "--to", str(whole / "site")])
    assert len(read) == 2


def test_a_folder_with_other_files_is_not_overwritten(tmp_path: Path, sample: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["report", "site", str(sample), "--to", str(tmp_path)]) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["report", "site", str(tmp_path), "--to", str(tmp_path / "new")]) == 4


def entry(number: int, status: Status, machine: str = "m", stand_in: bool = False) -> SiteEntry:
    """Return a run of one case, one day later than the previous number."""
    figure = entries.CaseFigure(
        case="ddp/net/weak@2gpu", ladder="ddp/net/weak", world_size=2, stand_in=stand_in,
        status=status, throughput=100.0, metric="efficiency", value=0.9 + number / 100, low=0.8, high=1.0, text=f"{0.9 + number / 100:.2f} [0.80, 1.00] efficiency v plain",
        against="plain",
    )  # fmt: skip
    return SiteEntry(
        run=f"r{number}", place=f"runs/r{number}", key=str(number),
        started_at=f"2026-01-{number + 1:02}T02:00:00+00:00", complete=True, machine=machine,
        title=f"8 x {machine}", torch="2", command="", status=status, headline=f"{status}: x",
        tally="", doubt="", cases=(figure,), rules=(),
    )  # fmt: skip


def test_a_day_shows_its_worst_run_and_a_machine_its_newest() -> None:
    newest_first = [entry(2, Status.PASS), entry(1, Status.FAIL), entry(0, Status.PASS)]
    same_day = entry(1, Status.PASS)
    nights = pages.nights([newest_first[0], same_day, *newest_first[1:]])
    ((_, by_day),) = nights["rows"]  # type: ignore[misc, attr-defined]
    assert nights["days"] == ["2026-01-03", "2026-01-02", "2026-01-01"]
    assert by_day["2026-01-02"].figure.status is Status.FAIL
    nights = pages.side_by_side([*newest_first, entry(5, Status.PASS, "other", stand_in=True)])
    ((case, of_case),) = nights["rows"]  # type: ignore[misc, attr-defined]
    assert case == "ddp/net/weak@2gpu" and set(of_case) == {"m"}, (
        "simulated compute must not be compared as hardware"
    )
    assert of_case["m"].entry.run == "r2"


def browse(page: Path, *arguments: str, at: str = "") -> str:
    words = [str(CHROMIUM), *FLAGS, f"--user-data-dir={page.parent}/profile", *arguments]
    words += ["--dump-dom", page.as_uri() + at]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout


@needs_chromium
@pytest.mark.full
@pytest.mark.parametrize(
    "scheme",
    [pytest.param(1, id="light"), pytest.param(0, id="dark", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("page", pages.PAGES)
def test_axe_finds_no_serious_accessibility_violation(
    page: str, scheme: int, site: Path, tmp_path: Path
) -> None:
    spec = importlib.util.find_spec("axe_core_python")
    assert spec is not None and spec.origin is not None
    code = Path(spec.origin).with_name("axe.min.js").read_text()
    kinds = "JSON.stringify(r.violations.map(v=>[v.id,v.impact,v.nodes[0].html]))"
    call = f"axe.run().then(r=>{{document.body.dataset.axe={kinds}}})"
    copy = tmp_path / page
    scripts = f"<script>{code}</script><script>{call}</script></body>"
    copy.write_text((site / page).read_text().replace("</body>", scripts))
    color = f"--blink-settings=preferredColorScheme={scheme}"
    dom = browse(copy, "--virtual-time-budget=20000", color)
    answer = re.search(r'data-axe="([^"]*)"', dom)
    assert answer, "axe did not run"
    violations = json.loads(html.unescape(answer[1]))
    assert [v for v in violations if v[1] != "minor"] == []


@needs_chromium
def test_a_search_in_the_address_filters_the_runs(site: Path) -> None:
    """The filter works without a server: words, a status, and the printed count."""
    dom = browse(site / "index.html", at="#q=nano&status=ERROR")
    shown = [tag for tag in re.findall(r"<li [^>]*>", dom) if " hidden" not in tag]
    assert len(shown) == 1 and 'data-status="ERROR"' in shown[0]
    dom = browse(site / "index.html", at="#q=2cpu+ddp-nano-again")
    shown = [tag for tag in re.findall(r"<li [^>]*>", dom) if " hidden" not in tag]
    assert len(shown) == 1 and "ddp-nano-again" in shown[0]
    assert ">1 of 3<" in dom


@needs_chromium
@pytest.mark.full
@pytest.mark.parametrize("page", pages.PAGES)
def test_pages_fit_into_a_phones_window(page: str, site: Path, tmp_path: Path) -> None:
    """The page is 390 px wide in a frame, because headless Chromium has no window narrower than 500
    px.
    """
    outer = tmp_path / "outer.html"
    wide = "const d=this.contentDocument.documentElement;document.body.dataset.over="
    wide += "[d.clientWidth,d.scrollWidth]"
    source = (site / page).as_uri()
    outer.write_text(
        f'<body><iframe width=390 height=900 frameborder=0 src="{source}" onload="{wide}">'
    )
    dom = browse(outer, "--allow-file-access-from-files")
    over = re.search(r'data-over="(\d+),(\d+)"', dom)
    assert over and int(over[2]) <= int(over[1]) <= 390


def test_pages_and_links_of_others_are_not_copied(site: Path) -> None:
    """A received folder may have a page with any content, or links to files of the user."""
    texts = [page.read_text() for page in site.rglob("*.html")]
    assert not any("a page of its own" in text or "of the user" in text for text in texts)
