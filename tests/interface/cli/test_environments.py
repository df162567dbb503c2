"""Environment variables reach every command; what the environment lacks is not blamed on a record."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base import host_errors
from harness.interface.cli.main import main

ROOT = Path(__file__).parents[3]
WORDS = {
    "report": ["report", "SAMPLE"],
    "verify": ["verify", "SAMPLE"],
    "list": ["run", "list"],
    "help": ["--help"],
    "doctor": ["check"],
}


@pytest.mark.parametrize("verb", WORDS)
def test_commands_work_in_an_ascii_locale(verb: str, copy: Path) -> None:
    words = [str(copy) if word == "SAMPLE" else word for word in WORDS[verb]]
    ascii_only = {
        "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words], env={**os.environ, **ascii_only},
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert "this record is damaged" not in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert "codec" not in done.stdout + done.stderr
    if verb in ("report", "list", "help"):
        assert done.returncode == 0, done.stderr


def test_commands_that_read_need_no_torch(copy: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from harness.interface.cli.main import main\n"
        "commands = (['report'], ['verify'], ['report', 'timeline'])\n"
        "print([main([*words, sys.argv[1]]) for words in commands], file=sys.stderr)"
    )
    words = [sys.executable, "-c", program, str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1:] == ["[0, 0, 0]"], done.stderr


def test_reading_a_run_needs_little_memory(copy: Path) -> None:
    """Reading must not allocate the maximum file size, a gigabyte, for a file of 2 kB."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))

    done = subprocess.run(
        [sys.executable, "-m", "harness", "report", str(copy)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=limited, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (OSError(12, "Cannot allocate memory"), "out of memory"),
        (ImportError("failed to map segment"), "a library cannot be loaded"),
        (
            UnicodeEncodeError("ascii", "·", 0, 1, "ordinal not in range"),
            "encoding of this locale, ascii",
        ),
    ],
)
def test_a_failure_of_the_host_is_not_blamed_on_the_record(
    error: Exception, words: str, copy: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from harness.analysis.judging import verdicts

    def lacks(*_: object) -> None:
        raise error

    monkeypatch.setattr(verdicts, "of_plan", lacks)
    # Otherwise the cache would contain that this run verifies.
    monkeypatch.setenv("XDG_CACHE_HOME", str(copy / "cache"))
    assert main(["verify", str(copy)]) == 4
    told = capsys.readouterr().err
    assert words in told and "this record is damaged" not in told and "  try  " in told
    assert host_errors.by_host(ValueError("a defect")) is None


def test_a_variable_reaches_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("SCALEPROOF_RESULTS", str(elsewhere))
    for words in (["history"], ["jobs"], ["report", "site"]):
        main(words)
        told = capsys.readouterr()
        assert "elsewhere" in told.out + told.err or words == ["jobs"], words
    assert main(["history", "add", str(ROOT / "results/samples/ddp-nano")]) == 0
    assert any(elsewhere.iterdir()), "the added run must be in that folder"
    capsys.readouterr()
    monkeypatch.setenv("SCALEPROOF_PATH", str(ROOT / "examples/my_files"))
    assert main(["run", "list", "strategies", "--json"]) == 0
    assert "by_hand" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["report", "SAMPLE", "--json"], ["run", "list", "models"]])
def test_losing_output_on_a_full_disk_is_an_error(words: list[str], copy: Path) -> None:
    shutil.rmtree(copy / "page", ignore_errors=True)
    command = [sys.executable, "-m", "harness", *(str(copy) if w == "SAMPLE" else w for w in words)]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 11 and "output is lost" in done.stderr
