"""Find the ranks of a running job by their environment variables, and read their stacks."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import programs
from harness.base.errors import ScaleproofError

#: Seconds that py-spy has to read the stack of one process.
SPY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """One process of a distributed job, with its rank and the size of its world."""

    pid: int
    rank: int
    world_size: int


def of_job(pid: int) -> list[RankProcess]:
    """Return the ranks among a process and its descendants, in order of rank.

    Raise ScaleproofError if the process does not exist, or if none of these processes has a rank.
    """
    if not Path(f"/proc/{pid}").is_dir():
        raise ScaleproofError(
            f"no process {pid} here",
            expected="the id of a launcher's or rank's process",
            fix="pgrep -af torchrun",
        )
    family = [pid]
    ranks = dict[int, RankProcess]()
    for member in family:
        family += _children(member)
        environment = variables(member)
        if environment.get("RANK", "").isdigit():
            rank = int(environment["RANK"])
            world = int(environment.get("WORLD_SIZE") or 0)
            ranks.setdefault(rank, RankProcess(pid=member, rank=rank, world_size=world))
    if not ranks:
        raise ScaleproofError(
            f"neither process {pid} nor any process that it started has a RANK",
            where=f"/proc/{pid}/environ",
            expected="a job whose launcher sets RANK and WORLD_SIZE, as torchrun does",
            fix=f"pstree -p {pid}",
        )
    return [ranks[rank] for rank in sorted(ranks)]


def variables(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, or {} if it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    children = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(word) for word in tasks.read_text(encoding="utf-8").split()]
        except OSError:
            continue
    return children


def cpu_s(pid: int) -> float:
    """Return the CPU time in seconds that a process has used so far, or 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spy() -> str:
    """Return the path of py-spy. Raise ScaleproofError if it is not installed."""
    if (program := programs.which("py-spy")) is None:
        raise ScaleproofError(
            "py-spy, which reads the stacks of processes without stopping them, is not installed",
            expected="py-spy on the PATH",
            fix="pip install py-spy",
        )
    return program


def main_stack(program: str, pid: int) -> list[tuple[str, str, int]]:
    """Return (function, file, line) of every frame of a process's main thread, innermost first.

    The process keeps running meanwhile. The result is empty if the process has ended, or if its
    stack cannot be read in time. Raise ScaleproofError if this user may not read the process.
    """
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SPY_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return []
    if done.returncode and Path(f"/proc/{pid}").is_dir():
        lines = (done.stderr or done.stdout).strip().splitlines()
        if "permission" in done.stderr.lower() or "privilege" in done.stderr.lower():
            raise ScaleproofError(
                f"process {pid} cannot be examined: {lines[-1]}",
                expected="a Python process of this user, and permission to trace it",
                fix=f"sudo env PATH=$PATH scaleproof jobs attach {pid}",
            )
    if done.returncode:
        return []
    threads: list[dict[str, Any]] = json.loads(done.stdout)
    main = next((thread for thread in threads if thread.get("thread_name") == "MainThread"), {})
    return [
        (f["name"], f.get("filename") or "", int(f.get("line") or 0))
        for f in main.get("frames", ())
    ]
