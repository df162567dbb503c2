"""The cache of verifications: its key covers every byte of the run and of the code, and nothing
else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.analysis import verify_cache
from harness.base.programs import PACKAGE, ROOT
from harness.interface.cli.main import main
from harness.record import RunRecord
from harness.record.chain import Link
from tests.editing import rechain, timed

#: A program that verifies a run and prints which files were opened during it.
OPENED = """
import json, sys
from pathlib import Path
from harness.analysis.verify import unsealed
from harness.analysis.reading import load
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
run = load(Path(sys.argv[1]))
assert not unsealed(run, Path(sys.argv[1]))
print(json.dumps(sorted(opened)))
"""


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start each test with an empty cache and code that has not changed since the program began."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verify_cache, "_BEGAN_S", float("inf"))
    verify_cache._code.cache_clear()
    yield
    verify_cache._code.cache_clear()


def recomputed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that collects the folders which are recomputed from now on."""
    folders: list[Path] = []
    usual = verify_cache.unsealed
    monkeypatch.setattr(
        verify_cache,
        "unsealed",
        lambda run, folder, links: folders.append(folder) or usual(run, folder, links),
    )
    return folders


def test_a_run_is_recomputed_once_and_again_after_any_change(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = recomputed(monkeypatch)
    first = verify_cache.vouched(copy)
    assert first == verify_cache.vouched(copy) == verify_cache.vouched(copy / "record.json")
    assert first[1] == "" and len(folders) == 1
    (copy / "report.html").write_text("a page is no part of a run")
    verify_cache.vouched(copy)
    assert len(folders) == 1
    samples = next(copy.glob("launches/*/rank0.npz"))
    samples.unlink()
    verify_cache.vouched(copy)
    assert len(folders) == 2


def test_every_byte_of_a_run_is_in_its_key(copy: Path) -> None:
    key = verify_cache.key_of(copy)
    files = sorted(p for p in copy.rglob("*") if p.is_file() and p.name not in verify_cache.BESIDE)
    assert len(files) > 20
    for file in files:
        before = file.read_bytes()
        seen = file.stat()
        changed = bytearray(before)
        changed[len(changed) // 2] ^= 1
        file.write_bytes(bytes(changed))
        os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert verify_cache.key_of(copy) != key, file
        file.write_bytes(before)
    (copy / "launches/extra").mkdir()
    assert verify_cache.key_of(copy) != key, "an empty launch folder must change the key"
    (copy / "launches/extra").rmdir()
    assert verify_cache.key_of(copy) == key


def test_every_file_that_a_verification_opens_is_in_the_key(copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", OPENED, str(copy)]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    opened = [Path(name) for name in json.loads(done.stdout)]
    in_key = {place for _, place in verify_cache._files(copy, "")}
    of_run = {str(path) for path in opened if path.is_relative_to(copy)}
    assert len(of_run) > 20 and of_run <= in_key
    installed = (PACKAGE, *(Path(p) for p in {sys.prefix, sys.base_prefix}), Path("/proc"))
    installed += tuple(path.resolve() for path in installed)
    strange = [
        path
        for path in opened
        if path.is_absolute() and not any(path.is_relative_to(p) for p in (copy, *installed))
    ]
    assert not [path for path in strange if not str(path).startswith(("/sys", "/etc", "/dev"))]


def test_a_change_of_the_code_invalidates_the_cache(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    shutil.copytree(PACKAGE / "analysis", package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(verify_cache, "PACKAGE", package)
    verify_cache.vouched(copy)
    key = verify_cache.key_of(copy)
    assert verify_cache.known(key)
    module = package / "verify.py"
    module.write_text(module.read_text().replace("1e-9", "1e-2"))
    verify_cache._code.cache_clear()
    assert not verify_cache.known(verify_cache.key_of(copy))
    # The code changed after the program had started.
    monkeypatch.setattr(verify_cache, "_BEGAN_S", 0.0)
    verify_cache._code.cache_clear()
    assert verify_cache.key_of(copy) is None


def test_a_run_that_does_not_verify_is_not_cached(copy: Path) -> None:
    doc = json.loads((copy / "record.json").read_text())
    for launch in timed(doc, "@2"):
        launch["consumed"] += 1
    (copy / "record.json").write_text(json.dumps(doc))
    (copy / "record.sha256").unlink(missing_ok=True)
    rechain(copy)
    for _ in range(2):
        assert "consumed is" in verify_cache.vouched(copy)[1]
        assert not verify_cache.known(verify_cache.key_of(copy))
    # A forged cache entry of this user can deceive a report, but never verify.
    key = verify_cache.key_of(copy)
    assert main(["report", str(copy)]) == 1
    verify_cache.keep(copy, key)
    assert main(["report", str(copy), "--markdown"]) != 1
    assert main(["verify", str(copy)]) == 1
    assert main(["history", "add", str(copy), "--results", str(copy.parent / "results")]) == 4


def test_symbolic_links_and_writable_cache_entries_are_not_trusted(
    copy: Path, tmp_path: Path
) -> None:
    verify_cache.vouched(copy)
    key = verify_cache.key_of(copy)
    assert key is not None and verify_cache.known(key)
    (tmp_path / "cache/scaleproof/verified" / key).chmod(0o666)
    assert not verify_cache.known(key)
    (tmp_path / "cache/scaleproof/verified" / key).chmod(0o600)
    (tmp_path / "cache/scaleproof/verified").chmod(0o777)
    assert not verify_cache.known(key)
    launch = next((copy / "launches").iterdir())
    launch.rename(tmp_path / "elsewhere")
    launch.symlink_to(tmp_path / "elsewhere")
    assert verify_cache.key_of(copy) is None
    assert verify_cache.vouched(copy)[1] == ""


def test_a_run_that_changes_during_verification_is_not_cached(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = verify_cache.unsealed

    def meanwhile(run: RunRecord, folder: Path, links: Sequence[Link]) -> str:
        doubt = usual(run, folder, links)
        (copy / "notes.txt").write_text("written meanwhile")
        return doubt

    monkeypatch.setattr(verify_cache, "unsealed", meanwhile)
    assert verify_cache.vouched(copy)[1] == ""
    assert not verify_cache.known(verify_cache.key_of(copy))


def test_reports_use_the_cached_result_of_verify(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = recomputed(monkeypatch)
    assert main(["verify", str(copy)]) == 0
    main(["report", str(copy)])
    assert not folders
