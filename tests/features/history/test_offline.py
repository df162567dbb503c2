"""asv's page loads nothing from the network if npm has installed the packages that it needs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import asv
import pytest

from harness.features.history import asv_results


@pytest.fixture
def html(tmp_path: Path) -> Path:
    """Return asv's page template, as ``asv publish`` copies it."""
    shutil.copytree(Path(asv.__file__).parent / "www", tmp_path / "html")
    return tmp_path / "html"


def installed(results: Path) -> None:
    for package, file in asv_results.PACKAGES.values():
        path = results / "node_modules" / package.rpartition("@")[0] / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {package} {file}")


def loaded(html: Path) -> list[str]:
    """Return the scripts and styles of the page that a browser would load."""
    text = (html / "index.html").read_text()
    scripts = re.findall(r'<script[^>]*src="([^"]+)"', text)
    return scripts + re.findall(r'<link[^>]*href="([^"]+\.css)"', text)


def test_installed_packages_are_copied_beside_the_page(html: Path, tmp_path: Path) -> None:
    installed(tmp_path)
    before = loaded(html)
    assert any(address.startswith("https:") for address in before)
    assert asv_results.beside(html, tmp_path) == []
    after = loaded(html)
    assert len(after) == len(before)
    assert all((html / address).is_file() for address in after), after
    assert "integrity" not in (html / "index.html").read_text(), (
        "integrity hashes do not apply to the copies"
    )
    assert asv_results.beside(html, tmp_path) == [], "a second call must change nothing"


def test_missing_packages_are_reported_and_the_page_is_unchanged(
    html: Path, tmp_path: Path
) -> None:
    before = loaded(html)
    missing = asv_results.beside(html, tmp_path)
    assert set(missing) == set(asv_results.PACKAGES)
    assert loaded(html) == before
    assert "npm install --prefix" in asv_results.command(tmp_path)
