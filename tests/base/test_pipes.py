"""A closed or full output stream changes neither the work of a command nor its exit status."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.interface.report.live import Live

ROOT = Path(__file__).parents[2]


def ended(words: list[str], unbuffered: bool, *, read: int = 0, errors: bool = False) -> int:
    """Return the exit status of a command whose reader closes the pipe after ``read`` bytes."""
    reader, writer = os.pipe()
    env = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, env=env,
        stdout=subprocess.DEVNULL if errors else writer,
        stderr=writer if errors else subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        os.close(writer)
        if read:
            os.read(reader, read)
        os.close(reader)
        output = "" if errors else started.communicate()[1]
    assert "Traceback" not in output and "BrokenPipe" not in output, output
    return started.returncode


@pytest.fixture
def doctored(sample: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(sample, tmp_path / "run"))
    record = json.loads((copy / "record.json").read_text())
    path = copy / "launches" / record["launches"][-1]["launch"]
    samples = next(path.glob("*.npz"))
    samples.write_bytes(samples.read_bytes()[:-1] + b"x")
    return copy


@pytest.mark.few(2)
@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize("read", [0, 1])
def test_verify_says_the_same_to_nobody(doctored: Path, unbuffered: bool, read: int) -> None:
    assert ended(["verify", str(doctored)], unbuffered, read=read) == 1


@pytest.mark.parametrize(
    "words", [["report", "results/samples/ddp-nano"], ["run", "list", "models"]]
)
def test_printing_a_table_to_a_closed_pipe_exits_with_0(words: list[str]) -> None:
    assert ended(words, True) == 0


def test_an_error_on_a_closed_pipe_keeps_its_exit_status() -> None:
    assert ended(["report", "nothing/there"], True, errors=True) == 4


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "streams",
    ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full", ">/dev/full 2>/dev/full"],
)
def test_streams_that_are_closed_or_full_change_no_status(doctored: Path, streams: str) -> None:
    for run, status in ((str(doctored), 1), ("/nowhere", 4)):
        words = shlex.join([sys.executable, "-m", "harness", "verify", run])
        done = subprocess.run(
            ["bash", "-c", f"{words} {streams}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (run, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        if streams == ">/dev/full":
            lost = "further output is lost: No space left on device" in done.stderr
            assert lost is (status != 4), done.stderr


def test_progress_is_drawn_in_a_terminal_of_one_column() -> None:
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "1")
        live = Live(stream)
        live.note("nothing")
        assert "nothing" in stream.getvalue()


@pytest.mark.full
def test_a_run_completes_if_nobody_reads_its_progress(tmp_path: Path) -> None:
    words = ["run", "ddp/paced-small/weak", "--cpus", "2", "--no-fabric", "--no-timeline"]
    words += ["--time-budget", "20", "--results", str(tmp_path)]
    assert ended(words, True, read=1, errors=True) in (0, 5, 10)
    (record,) = tmp_path.glob("runs/*/*/record.json")
    assert json.loads(record.read_text())["complete"]
