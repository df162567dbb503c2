"""Engine for Slurm, which starts the agents with srun or in a batch job.

If this program runs in an allocation, srun starts the agents in it. Otherwise a batch job is
submitted. Time in the queue is recorded and is not part of any measurement. This module writes the
batch script itself, so that ``--dry-run`` can print it. If nodes have different sizes, the script
requests a heterogeneous job with one component for each size.
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

#: States of squeue and the states of a job that they mean. Any other state of squeue means ENDED.
STATES = {
    "PENDING": State.PENDING, "CONFIGURING": State.PENDING, "REQUEUED": State.PENDING,
    "SUSPENDED": State.PENDING, "RUNNING": State.RUNNING, "COMPLETING": State.RUNNING,
}  # fmt: skip
#: Seconds that a cancelled job has to leave the queue.
STOP_S = 30.0


def groups(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Group consecutive nodes of equal size as (nodes, ranks on each).

    For example, (4, 4, 8) gives [(2, 4), (1, 8)].
    """
    return [(len(list(same)), ranks) for ranks, same in itertools.groupby(nodes)]


def component(num_nodes: int, ranks: int, deployment: Deployment) -> list[str]:
    """Return the options of sbatch for the nodes of one size.

    Raise SpecError if the cluster file has an invalid setting.
    """
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
        options.append("--exclusive")  # otherwise a task gets one CPU, whatever its GPUs need
    for key in ("partition", "account", "mem", "time"):
        if asked[key]:
            options.append(f"--{key}={_one_word(asked[key])}")
    for line in asked["lines"]:
        _check_line(line)
    return [*options, *asked["lines"]]


#: Options of sbatch that set the size of the job.
_SIZES = re.compile(r"(--nodes|--ntasks(-per-node)?|-N|-n)\b")


def _check_line(line: str) -> None:
    """Raise SpecError for a line that is not an option, or that changes the size of the job."""
    if not line.startswith("-"):
        bare = line.removeprefix("#SBATCH").strip()
        raise SpecError(
            f"lines: {line!r} is not an option of sbatch",
            where="[slurm]",
            expected="an option, without #SBATCH",
            fix=f'lines = ["{bare if bare.startswith("-") else "--exclusive"}"]',
        )
    if _SIZES.match(line):
        raise SpecError(
            f"lines: {line!r} would change where ranks run",
            where="[slurm]",
            expected="the size of the job given by --nodes and --gpus, or by the setting tasks",
            fix='tasks = "rank"' if "ntasks" in line else "--nodes 2 --gpus 16",
        )


def _one_word(text: str) -> str:
    """Return the text, in quotes if it contains spaces."""
    return f'"{text}"' if re.search(r"\s", text) else text


def _tasks(ranks: int, asked: Mapping[str, Json]) -> int:
    """Return the number of tasks on a node: one, or one for each rank."""
    return ranks if asked["tasks"] == "rank" else 1


def step(deployment: Deployment) -> list[str]:
    """Return the options of srun for every node.

    Either the agents bind ranks to CPUs, or Slurm binds each task to its CPUs. The setting ``srun``
    of the cluster file adds options, for example to start a container. Since Slurm 22.05, srun does
    not inherit --cpus-per-task from its job.
    """
    asked = deployment.settings
    binds = asked["tasks"] == "rank" and (asked["cpus"] or deployment.device is Device.CPU)
    bound = [f"--cpus-per-task={max(1, asked['cpus'])}"] if binds else ["--cpu-bind=none"]
    return ["--kill-on-bad-exit=0", *bound, *asked["srun"]]


def over_all(deployment: Deployment, command: Sequence[str], *options: str) -> list[str]:
    """Return the words of srun that run a command on every node of the job.

    Every component states its number of tasks. Otherwise srun, since Slurm 24, would use the number
    of the first component, from the job's environment, for all components.
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
    """Return a batch script that runs a command on every node of the job, or on its first node."""
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
    """Return a path as one word of an sbatch option: % is escaped, and spaces are quoted."""
    return _one_word(path.replace("%", "%%"))


def _line(option: str) -> str:
    """Return an option unchanged. Raise SpecError if it would be more than one line of a script."""
    if not option.isprintable():
        raise SpecError(
            f"{option!r} has a control character",
            where="[slurm]",
            expected="one line of plain text",
            fix="edit the cluster file",
        )
    return option


class Slurm:
    """The engine for Slurm, which also has a queue for whole runs."""

    def probe(self) -> Capabilities:
        """Return whether srun is installed and the Slurm controller answers."""
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
        """Return an srun command if this process is in an allocation.

        Otherwise return the command that submits a batch script.
        """
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
        """Return an srun command for one task on the node that lost its agent.

        The allocation is kept.
        """
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
        """Start the job step inside the allocation, or submit the batch job."""
        if commands[0].argv[0] == "srun":
            return Processes(commands, deployment.folder)
        return BatchJob(commands[0], deployment.folder)

    def left(self, deployment: Deployment, command: Sequence[str]) -> str:
        """Return the script of a job that runs this command on its first node."""
        return script(deployment, command, everywhere=False)

    def leave(self, deployment: Deployment, command: Sequence[str]) -> str:
        """Submit a batch job whose first node runs the command, and return its id."""
        path = str(deployment.folder / "job.sbatch")
        text = self.left(deployment, command)
        argv = ("sbatch", "--parsable", path)
        return submit(Command(nodes=(), argv=argv, files={path: text}))

    def log(self, folder: Path) -> Path:
        """Return the path of the job's log."""
        return folder / "slurm.log"

    def state_of(self, job: str) -> tuple[str, str]:
        """Return the state of a job and its reason (see ``state_of`` of this module)."""
        return state_of(job)

    def cancel(self, job: str) -> None:
        """Cancel a job, and wait until it has left the queue (see ``cancel`` of this module)."""
        cancel(job)


class BatchJob(Job):
    """A batch job that waits in the queue and then runs the agents on its nodes."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.log = folder / "slurm.log"
        self.job = submit(command)
        self._seen = ("PENDING", "None")
        self._steps = Processes((), folder)  # the job steps of agents that were started again

    def poll(self) -> tuple[State, str]:
        """Return the state that squeue reports, or its last answer if it does not answer now."""
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
        """Start an agent as a job step inside the running job."""
        assert command is not None
        inside = (command.argv[0], f"--jobid={self.job}", *command.argv[1:])
        return self._steps.renew(node, replace(command, argv=inside), token)

    def abandon(self, node: int) -> None:
        """Kill the job step of an agent that was started again."""
        self._steps.abandon(node)

    def stop(self) -> None:
        """Cancel the job, and wait until it has left the queue."""
        cancel(self.job)
        self._steps.stop()


def submit(command: Command) -> str:
    """Submit a batch job, and return its id. Raise LaunchError if sbatch fails."""
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
            expected="sbatch accepts the job",
            fix=shlex.join(command.argv),
        )
    return done.stdout.strip().split(";")[0]


def state_of(job: str) -> tuple[str, str]:
    """Return the state of a job and its reason from squeue, or empty strings if it is not queued.

    Raise LaunchError if squeue does not answer, because then the state is unknown.
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
            expected="the Slurm controller answers",
            fix=f"squeue -j {job}",
        )
    lines = done.stdout.strip().splitlines()
    word, _, why = (lines[0] if lines else "").partition("|")
    return word, why


def cancel(job: str) -> None:
    """Cancel a job, and wait until it has left the queue. Raise LaunchError if it stays."""
    subprocess.run(["scancel", job], capture_output=True, check=False)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        with contextlib.suppress(LaunchError):
            if not state_of(job)[0]:
                return
        time.sleep(0.1)
    raise LaunchError(
        f"job {job} does not end after scancel",
        where="slurm engine",
        fix=f"scancel --signal=KILL {job}",
    )


def build() -> Slurm:
    """Return the engine."""
    return Slurm()
