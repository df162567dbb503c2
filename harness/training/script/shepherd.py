"""Start ranks in new processes: a new interpreter for each rank, or the user's launcher.

The process that the agent forked for the rank becomes a supervisor. It serves the store where all
ranks meet, forwards the agent's signals, and ends when its rank ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from harness.base import programs
from harness.base.errors import LaunchError
from harness.cases.script import ScriptCommand
from harness.host import secrets
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.training.rank.setup import RankPlace
from harness.training.script import badges, process, startup, workplace
from harness.training.script.startup.sitecustomize import BADGES, HOME

#: Seconds between two checks for the record of the rank.
POLL_S = 0.05
#: Seconds to wait for the record after the launcher has ended, because a rank may outlive it.
LATE_S = 2.0


def lead(
    command: ScriptCommand, spec: LaunchSpec, place: RankPlace, beats: Beats, store: dist.TCPStore
) -> None:
    """Start this rank in a new process. With a launcher, local rank 0 starts all ranks of the node.

    The function returns when the rank has written its record and its process has ended.

    Raises:
        LaunchError: if the process ends without a record.
    """
    folder = Path(spec.out)
    way = "launcher" if command.launcher else "fresh"
    badges.write(
        badges.RankIdentity(
            spec=spec,
            command=command,
            rank=place.rank,
            local_rank=place.local_rank,
            node=place.node,
            device=place.device,
            cpus=place.cpus,
            beats=str(beats.path),
            host=store.host,
            port=store.port,
            way=way,
        )
    )
    store.set(f"badge{place.rank}", "here")
    store.wait([f"badge{r}" for r in range(place.world_size)])
    signal.signal(signal.SIGUSR1, _pass_on(folder / f"rank{place.rank}.pid"))
    started = None
    if not command.launcher or place.local_rank == 0:
        started = _start(command, spec, place, store)
    _wait(started, folder, place.rank, f"launcher{place.node}", store)


def _start(
    command: ScriptCommand, spec: LaunchSpec, place: RankPlace, store: dist.TCPStore
) -> subprocess.Popen[bytes]:
    """Start the process of this rank, or the launcher that starts the ranks of this node."""
    assert isinstance(spec.task, Script | Break)
    folder = Path(spec.out)
    home = Path(spec.task.folder)
    work = workplace.of(spec, place.node)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(
        [str(startup.FOLDER), *filter(None, workplace.on_path(named, home, work))]
    )
    env = {**os.environ, "PATH": programs.path(), "PYTHONPATH": path}
    env |= {BADGES: str(folder), HOME: str(programs.ROOT), **workplace.variables(spec, place.node)}
    if command.elsewhere:
        env[process.NO_BYTECODE] = "1"
    words = _filled(command)
    if not words:
        env |= process.variables(spec, place, store.host, store.port)
        target = ("-m", command.target) if command.module else (command.target,)
        secrets.filled(command.args)  # refuses a variable that is not set
        words = [sys.executable, *target, *command.args]
    return subprocess.Popen(words, env=env, cwd=work, stdin=subprocess.DEVNULL)


def _filled(command: ScriptCommand) -> list[str]:
    """Return the command of a launcher with the values of variables in its own options.

    The arguments of the script keep their placeholders, which its ranks replace: every user of the
    machine can read the command line of a process.
    """
    words = secrets.filled(command.launcher)
    names = [Path(word).name for word in command.launcher]
    target = Path(command.target).name
    end = names.index(target) if target in names else len(words)
    return [*words[:end], *command.launcher[end:]]


def _wait(
    started: subprocess.Popen[bytes] | None, out: Path, rank: int, key: str, store: dist.TCPStore
) -> None:
    """Wait for the record of the rank. If the rank writes an error instead, exit with status 1."""
    ended_at: float | None = None
    code: int | None = None
    while not (out / f"rank{rank}.json").is_file():
        if (out / f"rank{rank}.error.json").is_file():
            os._exit(1)
        if started is not None and code is None and (code := started.poll()) is not None:
            store.set(key, str(code))
        if started is None and code is None and store.check([key]):
            code = int(store.get(key))
        if code is not None:
            ended_at = ended_at or time.monotonic()
            if time.monotonic() - ended_at > LATE_S:
                raise _left_nothing(out, rank, code)
        time.sleep(POLL_S)
    if started is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(LATE_S)


def _left_nothing(out: Path, rank: int, code: int) -> LaunchError:
    """Return the error for a process that ended without a record of its rank."""
    started = (out / f"rank{rank}.pid").is_file()
    log = out / f"rank{rank}.log"
    last_words = (
        process.last_words(log.read_text(errors="replace", encoding="utf-8"))
        if log.is_file()
        else ""
    )
    quoted = f" (it said: {last_words[: process.QUOTED]})" if last_words else ""
    return LaunchError(
        f"the process of the rank ended with status {code} and wrote no record{quoted}"
        if started
        else f"the launcher ended with status {code} and started no process as rank {rank}"
        + quoted,
        expected="a training that uses torch's optimizers and backward passes"
        if started
        else "a launcher that starts the requested number of ranks on this device",
        fix=f"less {log}",
    )


def _pass_on(pid_file: Path) -> "signal._HANDLER":
    """Return a signal handler that forwards the request for a stack trace to the rank's process."""

    def handler(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid_file.read_text(encoding="utf-8")), number)

    return handler
