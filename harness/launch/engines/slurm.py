"""Slurm: starts agents by srun inside an allocation, by a batch job elsewhere.

Time in the queue is noted and never measured. The batch script is written here rather than by a
library, so that ``--dry-run`` can print it and nodes of unequal size get a component each.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import Device
from harness.launch.dialers import Processes, agent
from harness.launch.engine import (
    Capabilities,
    Command,
    Deployment,
    Job,
    State,
    importable,
    last_line,
)
from harness.launch.wire.channel import Channel

ENGINE = dict(multi_node=True, joins=True, remote=True, queues=True)
SETTINGS = dict(
    partition="", account="", gres="", mem="", time="", modules=[], lines=[], tasks="node", cpus=0,
    listen="", port=0, token_file="", python="", srun=[], one_machine=False,
)  # fmt: skip

#: What squeue says, in this program's words; whatever else it says is an end.
STATES = {
    "PENDING": State.PENDING, "CONFIGURING": State.PENDING, "REQUEUED": State.PENDING,
    "SUSPENDED": State.PENDING, "RUNNING": State.RUNNING, "COMPLETING": State.RUNNING,
}  # fmt: skip
STOP_S = 30.0


def groups(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """(nodes, ranks on each) of neighbours of equal size: (4, 4, 8) -> [(2, 4), (1, 8)]."""
    return [(len(list(same)), ranks) for ranks, same in itertools.groupby(nodes)]


def component(num_nodes: int, ranks: int, deployment: Deployment) -> list[str]:
    """Sbatch's options for nodes of one size."""
    asked = deployment.settings
    if asked["tasks"] not in ("node", "rank"):
        raise SpecError(
            f"tasks = {asked['tasks']!r}",
            where="[slurm]",
            expected='"node" or "rank"',
            fix="edit the cluster file",
        )
    tasks = _tasks(ranks, asked)
    options = [f"--nodes={num_nodes}", f"--ntasks-per-node={tasks}"]
    if asked["gres"]:
        options.append(f"--gres={asked['gres']}")
    elif deployment.device is Device.CUDA:
        options.append(f"--gpus-per-node={ranks}")
    if asked["cpus"] or deployment.device is Device.CPU:
        options.append(f"--cpus-per-task={max(1, asked['cpus']) * ranks // tasks}")
    elif not any(line.startswith(("--exclusive", "--cpus-per-")) for line in asked["lines"]):
        options.append("--exclusive")  # else a task gets one CPU, whatever its GPUs need
    for key in ("partition", "account", "mem", "time"):
        if asked[key]:
            options.append(f"--{key}={_one_word(asked[key])}")
    for line in asked["lines"]:
        _check_line(line)
    return [*options, *asked["lines"]]


#: Options of sbatch that say how large the job is.
_SIZES = re.compile(r"(--nodes|--ntasks(-per-node)?|-N|-n)\b")


def _check_line(line: str) -> None:
    """SpecError for a line of the cluster file that is no option, or contradicts the ranks."""
    if not line.startswith("-"):
        bare = line.removeprefix("#SBATCH").strip()
        raise SpecError(
            f"lines: {line!r} is no option of sbatch",
            where="[slurm]",
            expected="an option, without #SBATCH",
            fix=f'lines = ["{bare if bare.startswith("-") else "--exclusive"}"]',
        )
    if _SIZES.match(line):
        raise SpecError(
            f"lines: {line!r} would change where ranks run",
            where="[slurm]",
            expected="--nodes and --gpus of the command, or tasks",
            fix='tasks = "rank"' if "ntasks" in line else "--nodes 2 --gpus 16",
        )


def _one_word(text: str) -> str:
    return f'"{text}"' if re.search(r"\s", text) else text


def _tasks(ranks: int, asked: Mapping[str, Json]) -> int:
    return ranks if asked["tasks"] == "rank" else 1


def step(deployment: Deployment) -> list[str]:
    """Srun's options for every node: agents bind ranks to CPUs, or Slurm binds each to its own.

    ``srun`` in the cluster file adds others, a container's for example. Srun does not take over
    --cpus-per-task from its job (since Slurm 22.05).
    """
    asked = deployment.settings
    binds = asked["tasks"] == "rank" and (asked["cpus"] or deployment.device is Device.CPU)
    bound = [f"--cpus-per-task={max(1, asked['cpus'])}"] if binds else ["--cpu-bind=none"]
    return ["--kill-on-bad-exit=0", *bound, *asked["srun"]]


def over_all(deployment: Deployment, command: Sequence[str], *options: str) -> list[str]:
    """Srun of a command on every node of the job.

    A component says how many tasks it has: since Slurm 24 srun would read the first one's number
    from the job's environment for all.
    """
    parts = groups(deployment.nodes)
    if len(parts) == 1:
        return ["srun", *options, *step(deployment), *command]
    words = ["srun"]
    for i, (num_nodes, ranks) in enumerate(parts):
        tasks = num_nodes * _tasks(ranks, deployment.settings)
        size = [f"--het-group={i}", f"--nodes={num_nodes}", f"--ntasks={tasks}"]
        words += [*([":"] if i else []), *options, *size, *step(deployment), *command]
    return words


def script(deployment: Deployment, command: Sequence[str], *, everywhere: bool = True) -> str:
    """A batch script that runs ``command`` on every node of the job, or on its first."""
    parts = [component(n, ranks, deployment) for n, ranks in groups(deployment.nodes)]
    lines = ["#!/bin/bash", "#SBATCH --job-name=scaleproof"]
    lines += [f"#SBATCH --output={quoted(str(deployment.folder / 'slurm.log'))}"]
    for i, options in enumerate(parts):
        lines += ["#SBATCH hetjob"] if i else []
        lines += [f"#SBATCH {_line(option)}" for option in options]
    lines += [f"module load {shlex.quote(name)}" for name in deployment.settings["modules"]]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in importable().items()]
    start = over_all(deployment, command) if everywhere else list(command)
    lines.append("exec " + shlex.join(start))
    return "\n".join(lines) + "\n"


def quoted(path: str) -> str:
    """As sbatch reads a word of its options: in quotes where it has spaces, and % as itself."""
    return _one_word(path.replace("%", "%%"))


def _line(option: str) -> str:
    """An option as it stands; SpecError for one that would be more than a line of the script."""
    if not option.isprintable():
        raise SpecError(
            f"{option!r} has a control character",
            where="[slurm]",
            expected="one line",
            fix="edit the cluster file",
        )
    return option


class Slurm:
    def probe(self) -> Capabilities:
        if shutil.which("srun") is None:
            return Capabilities(available=False, reason="srun is not installed")
        version = subprocess.run(
            ["sinfo", "--version"],
            capture_output=True,
            text=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        try:
            subprocess.run(["sinfo", "-h"], capture_output=True, check=True, timeout=10)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return Capabilities(available=False, reason="slurmctld does not answer")
        return Capabilities(available=True, version=version.stdout.strip())

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Srun inside an allocation, else a batch script that holds it."""
        command = agent(deployment)
        nodes = tuple(range(len(deployment.nodes)))
        if "SLURM_JOB_ID" in os.environ:
            parts = groups(deployment.nodes)
            size = component(*parts[0], deployment)[:2] if len(parts) == 1 else []
            argv = over_all(deployment, command, "--overlap", *size)
            return (Command(nodes=nodes, argv=tuple(argv), env=importable()),)
        path = deployment.folder / "job.sbatch"
        argv = ["sbatch", "--parsable", str(path)]
        files = {str(path): script(deployment, command)}
        return (Command(nodes=nodes, argv=tuple(argv), files=files),)

    def again(self, deployment: Deployment, node: int, host: str) -> Command:
        """A step of one task on the node that lost its agent: the allocation is kept."""
        argv = ["srun", "--overlap", *step(deployment), "--nodes=1", "--ntasks=1"]
        parts = groups(deployment.nodes)
        before = node
        for part, (many, _) in enumerate(parts):
            if before < many:
                argv += [f"--het-group={part}"] if len(parts) > 1 else []
                argv += [f"--relative={before}"]
                break
            before -= many
        command = agent(deployment, f"--order={node}")
        return Command(nodes=(node,), argv=(*argv, *command), env=importable())

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Processes | BatchJob:
        """Start the step, or submit the job."""
        if commands[0].argv[0] == "srun":
            return Processes(commands, deployment.folder)
        return BatchJob(commands[0], deployment.folder)

    def left(self, deployment: Deployment, command: Sequence[str]) -> str:
        """The script of such a job: it can be submitted as it is."""
        return script(deployment, command, everywhere=False)

    def leave(self, deployment: Deployment, command: Sequence[str]) -> str:
        """A batch job whose first node runs the command."""
        path = str(deployment.folder / "job.sbatch")
        text = self.left(deployment, command)
        argv = ("sbatch", "--parsable", path)
        return submit(Command(nodes=(), argv=argv, files={path: text}))

    def log(self, folder: Path) -> Path:
        return folder / "slurm.log"

    def state_of(self, job: str) -> tuple[str, str]:
        return state_of(job)

    def cancel(self, job: str) -> None:
        cancel(job)


class BatchJob(Job):
    """A job in the queue, then on its nodes."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.log = folder / "slurm.log"
        self.job = submit(command)
        self._seen = ("PENDING", "None")
        self._steps = Processes((), folder)  # of nodes whose agent was lost

    def poll(self) -> tuple[State, str]:
        """As squeue has it, or had it when it last answered."""
        with contextlib.suppress(LaunchError):
            self._seen = state_of(self.job)
        word, reason = self._seen
        if (state := STATES.get(word)) is not None:
            return state, f"job {self.job} {word.lower()}" + (
                f": {reason}" if reason != "None" else ""
            )
        log = self.log.read_text(errors="replace", encoding="utf-8") if self.log.is_file() else ""
        last = last_line(log, word.lower() or "gone")
        return State.ENDED, f"job {self.job}: {last} (log {self.log})"

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """A step inside the job."""
        assert command is not None
        inside = (command.argv[0], f"--jobid={self.job}", *command.argv[1:])
        return self._steps.renew(node, replace(command, argv=inside), token)

    def abandon(self, node: int) -> None:
        self._steps.abandon(node)

    def stop(self) -> None:
        """Cancel it, and wait until it has left the queue."""
        cancel(self.job)
        self._steps.stop()


def submit(command: Command) -> str:
    """The id of a new batch job."""
    for name, text in command.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        command.argv,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        raise LaunchError(
            last_line(done.stderr, "sbatch failed"),
            where="slurm engine",
            expected="a job that the cluster accepts",
            fix=shlex.join(command.argv),
        )
    return done.stdout.strip().split(";")[0]


def state_of(job: str) -> tuple[str, str]:
    """Squeue's state of a job and its reason; empty when it is not in the queue.

    LaunchError when squeue does not answer: that says nothing of the job.
    """
    done = subprocess.run(
        ["squeue", "-h", "-j", job, "-o", "%T|%r"],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LaunchError(
            f"squeue does not answer: {done.stderr.strip() or done.returncode}",
            where="slurm engine",
            expected="a controller that answers",
            fix=f"squeue -j {job}",
        )
    lines = done.stdout.strip().splitlines()
    word, _, why = (lines[0] if lines else "").partition("|")
    return word, why


def cancel(job: str) -> None:
    """Cancel a job, and wait until it has left the queue; LaunchError if it stays."""
    subprocess.run(["scancel", job], capture_output=True, check=False)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        with contextlib.suppress(LaunchError):
            if not state_of(job)[0]:
                return
        time.sleep(0.1)
    raise LaunchError(
        f"job {job} does not end", where="slurm engine", fix=f"scancel --signal=KILL {job}"
    )


def build() -> Slurm:
    return Slurm()
