"""A closed or full output stream changes neither the work of a command nor its exit status."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base import files
from harness.base.errors import Exit, SpecError
from harness.interface.cli import main as command_line
from harness.interface.report.heartbeat import watched
from harness.interface.report.live import Live
from harness.measure.progress import Progress

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


def test_a_child_process_of_a_program_without_output_has_one() -> None:
    child = "import sys; sys.exit(sys.stdout is None)"
    program = (
        "import subprocess, sys; from harness.base import pipes\n"
        f"with pipes.kept_open(): sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    )
    words = shlex.join([sys.executable, "-c", program])
    assert subprocess.call(["bash", "-c", f"{words} >&-"], cwd=ROOT) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file that it was writing is removed."""

    def struck(words: object) -> None:
        with files.whole(tmp_path / "a") as file:
            file.write(b"x")
            os.kill(os.getpid(), number)
            time.sleep(60)

    monkeypatch.setattr(command_line, "run", struck)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert command_line.main(["report"]) == Exit.INTERRUPTED
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_or_device_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """A pipe without a writer would block its reader forever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        files.opened(pipe)
    with pytest.raises(FileExistsError):
        files.write({pipe: "x"})
    with pytest.raises(SpecError, match="no regular file"):
        watched(Progress(), str(pipe))
    assert pipe.is_fifo()
