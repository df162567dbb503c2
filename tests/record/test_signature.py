"""Verify checks who signed a run, with keys that ssh-keygen made."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.base.errors import Exit
from harness.interface.cli.main import main
from tests.editing import change, rechain
from tests.record.test_doctored import behind_the_end, doctored, faster, older

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name, kind in (("site", "ed25519"), ("other", "ed25519"), ("old", "ecdsa")):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            kind,
            "-N",
            "",
            "-C",
            "a site",
            "-f",
            str(folder / name),
        ]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def run(sample: Path, tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    page = shutil.ignore_patterns("*report.html*")
    folder = Path(shutil.copytree(sample, tmp_path / "run", ignore=page))
    assert main(["accept", "sign", str(folder), "--key", str(keys / "site")]) == Exit.PASSED
    capsys.readouterr()
    return folder


def verified(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main(["verify", *map(str, words)])
    return code, capsys.readouterr().out


def test_verify_prints_the_key_that_signed(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = verified(capsys, run, "--key", keys / "site.pub")
    assert code == Exit.PASSED
    assert "signed by ssh-ed25519 " in out and "everything agrees" in out


def test_a_signature_by_another_key_fails(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = verified(capsys, run, "--key", keys / "other.pub")
    assert code == Exit.FAILED and "signed by another key" in out


def test_one_key_must_have_signed(
    run: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with two keys is ambiguous, and a private key cannot check a signature."""
    both = tmp_path / "both.pub"
    both.write_text((keys / "site.pub").read_text() + (keys / "other.pub").read_text())
    for key in (both, keys / "site", tmp_path / "missing.pub"):
        assert main(["verify", str(run), "--key", str(key)]) == Exit.USAGE
        assert f"--key {key}" in capsys.readouterr().err


def test_the_signature_reveals_a_complete_forgery(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples, digests, figures and the whole chain are recomputed, which changes the head."""
    doctored(run, faster)
    rechain(run)
    code, out = verified(capsys, run, "--key", keys / "site.pub")
    assert code == Exit.FAILED and "the signature belongs to another run" in out


def test_an_older_schema_and_blocks_after_the_end_are_told_under_a_valid_signature(
    run: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signature stays valid: the record contradicts the chain, or links are appended to the
    chain.
    """
    grown = Path(shutil.copytree(run, tmp_path / "grown"))
    doctored(run, older)
    code, out = verified(capsys, run, "--key", keys / "site.pub")
    assert code == Exit.FAILED and "schema differs from what was sealed" in out
    behind_the_end(grown, ("ended", {"notes": [], "out_of_time": []}))
    code, out = verified(capsys, grown, "--key", keys / "site.pub")
    assert code == Exit.FAILED and "continues after its end" in out


def test_a_forged_signature_under_the_sites_key_is_found(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = json.loads((run / "chain.sig").read_text())["key"]
    main(["accept", "sign", str(run), "--key", str(keys / "other")])
    forged = json.loads((run / "chain.sig").read_text())
    (run / "chain.sig").write_text(json.dumps({**forged, "key": named}))
    capsys.readouterr()
    code, out = verified(capsys, run, "--key", keys / "site.pub")
    assert code == Exit.FAILED and "does not match the public key" in out


def test_an_unsigned_run_fails_if_a_key_is_given(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "chain.sig").unlink()
    assert verified(capsys, run)[0] == Exit.PASSED
    code, out = verified(capsys, run, "--key", keys / "site.pub")
    assert code == Exit.FAILED and "the run is not signed" in out


def test_a_run_without_the_given_nonce_fails(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = verified(capsys, run, "--nonce", "tender 17")
    assert code == Exit.FAILED and "this run has no nonce; 'tender 17'" in out


@pytest.mark.parametrize(
    ("key", "says"),
    [("old", "not an ed25519 key"), ("site.pub", "--key"), ("none", "No such file")],
)
def test_a_bad_key_is_one_clear_error(
    run: Path, keys: Path, key: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept", "sign", str(run), "--key", str(keys / key)]) == Exit.USAGE
    error = capsys.readouterr().err
    assert says in error and "ssh-keygen -t ed25519" in error


def test_a_run_that_does_not_verify_is_not_signed(
    run: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctored(run, lambda doc, _: doc["verdicts"][0].update(value=2.0))
    assert main(["accept", "sign", str(run), "--key", str(keys / "site")]) != Exit.PASSED
    assert "does not verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "status", "word"),
    [
        ("2026-11-01T00:00Z", 0, "runs of this length fit between the nonce and the end"),
        ("2026-11-22T14:54:50Z", 0, "no second run of this length fits between"),
        ("2026-12-01", 1, "before the nonce was issued"),
        ("yesterday", 4, "try       date -u +%FT%TZ"),
    ],
)
def test_a_buyer_bounds_how_many_runs_a_nonce_served(
    copy: Path, capsys: pytest.CaptureFixture[str], given: str, status: int, word: str
) -> None:
    change(copy, lambda doc: doc["settings"].update(nonce="tender 17"))
    rechain(copy)
    words = ["--nonce", "tender 17", "--given", given]
    assert main(["verify", str(copy), *words]) == status
    out, err = capsys.readouterr()
    assert word in " ".join((out + err).split()) or word in out + err
