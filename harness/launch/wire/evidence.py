"""Collect what a rank leaves behind (heartbeats, evidence files), and end orphaned processes."""

import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.base import programs
from harness.base.documents import from_doc
from harness.base.errors import ScaleproofError
from harness.host import secrets as masking
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import Flight, RankEnd, RankError

#: The environment variable that marks all processes of a family. It identifies a process that has
#: left its process group and its session.
FAMILY = "SCALEPROOF_FAMILY"
#: Option of prctl(2) with which a process adopts the orphans among its descendants.
_PR_SET_CHILD_SUBREAPER = 36
#: Bytes of a rank's log file that are kept: half of them from its beginning, half from its end.
LOG_BYTES = 1 << 20
#: Seconds that ``end`` may take to kill and reap all processes.
END_S = 5.0


def adopt() -> None:
    """Make this process the parent of every orphan among its descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def new_family() -> dict[str, str]:
    """Return an environment that marks the processes started in it as one new family.

    The mark starts with the pid of this process.
    """
    return {FAMILY: f"{os.getpid()}-{secrets.token_hex(4)}"}


def end(family: dict[str, str] | None = None, sessions: Collection[int] = ()) -> None:
    """Kill and reap every child process, and the orphans that each of them leaves.

    With ``family``, only the members of that family are ended. A process is a member if its
    environment has the mark of the family, or if its session id is one of ``sessions``. Session ids
    are needed for zombies, whose environment can no longer be read.
    """
    mark = f"{FAMILY}={family[FAMILY]}".encode() if family else b""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        pids = list(_children())
        if family is not None:
            pids = [p for p in pids if mark in _environment(p) or _session(p) in sessions]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    """Yield the pids of the children of this process."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            yield from map(int, (task / "children").read_text(encoding="utf-8").split())


def _environment(pid: int) -> list[bytes]:
    """Return the environment of a process as ``NAME=value`` texts; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _session(pid: int) -> int:
    """Return the session of a process, or -1 if the process is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


#: Seconds that hung ranks have to write their stacks and their last collectives.
EXAMINE_S = 0.5
#: Seconds that py-spy has to write the stacks of all ranks that did not write them themselves.
SPY_S = 2.0


def examine(out: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """Return the process state of these ranks (``T`` stopped, ``D`` in the kernel, and so on).

    ``pids`` maps ranks to process ids. Signals also ask the ranks to write their stacks and
    collectives into ``out``. For a rank that cannot, for example because it is stopped, py-spy
    writes the stack if it is installed.
    """
    states: dict[int, str] = {}
    for rank, pid in pids.items():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            states[rank] = status.partition("State:")[2].split()[0]
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
    deadline = time.monotonic() + EXAMINE_S
    while time.monotonic() < deadline and not all(
        _said(out, rank) for rank, state in states.items() if state != "T"
    ):
        time.sleep(0.02)
    _spy(out, {rank: pids[rank] for rank in states if not _said(out, rank)})
    return states


def _spy(out: Path, pids: Mapping[int, int]) -> None:
    """Write the stacks of ranks that did not do so themselves, with py-spy if it is installed."""
    spy = programs.which("py-spy")
    deadline = time.monotonic() + SPY_S
    for rank, pid in pids.items() if spy else ():
        left_s = max(0.1, deadline - time.monotonic())
        command = [str(spy), "dump", "--nonblocking", "--pid", str(pid)]
        ended_badly = contextlib.suppress(OSError, subprocess.TimeoutExpired)
        with ended_badly, (out / f"rank{rank}.pyspy").open("w", encoding="utf-8") as file:
            subprocess.run(command, stdout=file, stderr=file, timeout=left_s, check=False)


def _said(out: Path, rank: int) -> bool:
    """Return whether a rank has written its stack and its collectives."""
    stack, flight = out / f"rank{rank}.stack", out / f"rank{rank}.flight.json"
    return stack.is_file() and stack.stat().st_size > 0 and flight.is_file()


def lives(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False


def rank_end(  # noqa: PLR0913  (fields of a rank's end)
    out: Path,
    beats: Beats,
    rank: int,
    *,
    pid: int,
    exit_code: int | None,
    number: int | None,
    killed: bool,
    order: int,
    node: int,
    ended_s: float,
    state: str,
    out_of_memory: bool = False,
    lost: str = "",
) -> RankEnd:
    """Return how a rank ended, from its exit status and the files that it wrote.

    ``number`` is the signal that ended it, if one did. ``lost`` is the reason why its node is lost.
    """
    phase, step, silent = beats.read(rank)
    stack = out / f"rank{rank}.stack"
    flight = _written(out / f"rank{rank}.flight.json", Flight) or Flight(collectives=())
    return RankEnd(
        rank=rank,
        pid=pid,
        exit_code=exit_code,
        signal=number,
        killed=killed,
        finished=(out / f"rank{rank}.json").is_file() and phase is Phase.DONE,
        phase=phase.name.lower(),
        step=step,
        silent_s=silent,
        order=order,
        node=node,
        ended_s=ended_s,
        error=_written(out / f"rank{rank}.error.json", RankError),
        state=state,
        stack=stack.read_text(encoding="utf-8") if stack.is_file() else "",
        flight=flight.collectives,
        loop=flight.loop,
        out_of_memory=out_of_memory,
        lost=lost,
    )


def _written(path: Path, kind: Any) -> Any:
    """Return a document that a rank wrote before it ended, or None if no complete one exists."""
    try:
        return from_doc(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ScaleproofError):
        return None


def settle(log: Path) -> None:
    """Shorten a rank's log file to ``LOG_BYTES``, and mask the secrets that the rank printed.

    The log is stored with every launch, so a long one keeps only its beginning and its end.
    """
    if not log.is_file():
        return
    with log.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        half = LOG_BYTES // 2
        if size <= LOG_BYTES:
            text = file.read().decode(errors="surrogateescape")
            masked = masking.masked(text)
        else:
            ends = file.read(half), os.pread(file.fileno(), half, size - half)
            start, end = masking.masked_ends(
                *(piece.decode(errors="surrogateescape") for piece in ends)
            )
            text = ""
            masked = f"{start}\n... about {size - 2 * half} bytes left out ...\n{end}"
        if masked != text:
            file.seek(0)
            file.truncate()
            file.write(masked.encode(errors="surrogateescape"))


def memory_kills() -> int:
    """Return how many processes the kernel has killed since boot because memory ran out.

    The result is 0 if the kernel does not report it.
    """
    try:
        lines = Path("/proc/vmstat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
