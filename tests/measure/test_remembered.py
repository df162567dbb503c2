"""The cache of described cases, and when cases are described again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.base import files
from harness.cases import CaseSpec, Catalogue, Device, Site
from harness.measure.describe_cache import DescribeCache
from harness.measure.describing import described
from harness.record import Described

KNOWN = Catalogue()
ROOT = Path(__file__).parents[2]


def case_of(name: str, known: Catalogue = KNOWN) -> CaseSpec:
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    return known.normalise(site.case(name))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_cached_description_lasts_until_the_package_changes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of("ddp/mlp-nano")
    (answer,) = described([case], KNOWN)
    assert DescribeCache(KNOWN).of([case]) == {}
    DescribeCache(KNOWN).keep([case], {case.hash: answer})
    assert DescribeCache(KNOWN).of([case]) == {case.hash: answer}
    monkeypatch.setattr(files, "digest_of_package", lambda: "edited")
    assert DescribeCache(KNOWN).of([case]) == {}, "another version may answer otherwise"
    DescribeCache(KNOWN).keep([case], {case.hash: answer})
    assert len(list(cache.rglob("described-*"))) == 1, "what nobody asks for any more is gone"


def test_descriptions_of_a_users_file_are_not_cached(cache: Path) -> None:
    known = Catalogue([ROOT / "examples/my_files"])
    theirs = next(e for e in known.entries["strategies"].values() if not e.shipped)
    case = case_of(f"{theirs.name}/mlp-nano", known)
    DescribeCache(known).keep([case], {case.hash: Described()})
    assert DescribeCache(known).of([case]) == {}


def test_nothing_is_cached_without_a_writable_home(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    case = case_of("ddp/mlp-nano")
    DescribeCache(KNOWN).keep([case], {case.hash: Described()})
    assert DescribeCache(KNOWN).of([case]) == {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    DescribeCache(KNOWN).keep([case], {case.hash: Described(error="took more than 60 s to answer")})
    assert DescribeCache(KNOWN).of([case]) == {}, "a busy moment is no answer"
    DescribeCache(KNOWN).keep([case], {case.hash: Described()})
    (file,) = cache.rglob("described-*")
    file.write_text("{torn")
    assert DescribeCache(KNOWN).of([case]) == {}, "a torn file is asked for again"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    DescribeCache(KNOWN).keep([case], {case.hash: Described()})
    assert DescribeCache(KNOWN).of([case]) == {}, "a user without a home"
