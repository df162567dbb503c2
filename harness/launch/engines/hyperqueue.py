"""Engine for HyperQueue: each agent is a task that has a whole worker to itself.

The engine needs the extra ``scaleproof[hyperqueue]`` and a running server. The folder of the server
(``server_dir``) and the folder of results must be on a disk that all workers share. HyperQueue
itself has the same requirement.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.base.errors import LaunchError
from harness.launch.dialers import agent
from harness.launch.engine import (
    Capabilities,
    Command,
    Deployment,
    Job,
    State,
    importable,
    last_line,
)
from harness.launch.wire.channel import Channel, read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    server_dir="", listen="", port=0, token_file="", python="", one_machine=False,
)  # fmt: skip

#: Seconds that tasks have to end after the connections to their agents are closed.
STOP_S = 30.0


class HyperQueue:
    """The engine for HyperQueue."""

    def probe(self) -> Capabilities:
        """Return whether the package is installed; the server is only used by ``start``."""
        if importlib.util.find_spec("hyperqueue") is None:
            return Capabilities(
                available=False,
                reason="hyperqueue is not installed (pip install 'scaleproof[hyperqueue]')",
            )
        return Capabilities(available=True, version=metadata.version("hyperqueue"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the command of each task. The token is passed to the task through stdin."""
        return tuple(self.again(deployment, node, "") for node in range(len(deployment.nodes)))

    def again(self, deployment: Deployment, node: int, host: str) -> Command:
        """Return the command of the task for one node, which runs on any free worker."""
        argv = agent(deployment, f"--order={node}", token="/dev/stdin")
        return Command(nodes=(node,), argv=tuple(argv), env=importable())

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Tasks:
        """Submit a job with one task for each node."""
        return Tasks(commands, deployment)


class Tasks(Job):
    """Tasks that wait in the server's queue and then run on workers.

    Only this class imports the package ``hyperqueue``.
    """

    def __init__(self, commands: Sequence[Command], deployment: Deployment) -> None:
        import hyperqueue
        from hyperqueue.ffi.protocol import ResourceRequest

        self._job_of: Any = hyperqueue.Job
        # Request a whole worker, so that no two agents share one, whatever its size.
        self._whole_worker = ResourceRequest(n_nodes=1, cpus=0)
        self._folder = deployment.folder
        self._submitted: list[Any] = []
        self._places: dict[int, tuple[int, int]] = {}  # node -> (job, task) of its agent
        self._nodes = len(commands)
        where = str(deployment.settings["server_dir"]) or os.environ.get("HQ_SERVER_DIR")
        try:
            self._client: Any = hyperqueue.Client(where)
            self._submit(commands, read_token(deployment.token_file))
        except Exception as error:  # the package has no more specific exceptions
            first = str(error).strip().splitlines()[:1]  # the other lines are a backtrace
            raise LaunchError(
                f"no server accepts tasks: {(first or [type(error).__name__])[0]}",
                where="hyperqueue engine",
                expected=f"a running HyperQueue server with the folder {where or '~/.hq-server'}",
                fix="hq server info",
            ) from None

    def _submit(self, commands: Sequence[Command], token: bytes) -> None:
        """Submit a job with one task for each command."""
        self._folder.mkdir(parents=True, exist_ok=True)
        job = self._job_of(name="scaleproof", max_fails=None)  # a failure must not end other tasks
        for command in commands:
            (node,) = command.nodes
            log = self._log(node)
            log.unlink(missing_ok=True)
            job.program(
                list(command.argv),
                env={**command.env},
                cwd=str(self._folder),
                stdin=token,
                stdout=str(log),
                stderr=str(self._folder / f"{log.stem}.err"),
                resources=self._whole_worker,
                crash_limit=1,  # the server must not restart a task: no run waits for that agent
            )
        submitted = self._client.submit(job)
        self._submitted.append(submitted)
        for task, command in enumerate(commands):
            self._places[command.nodes[0]] = (submitted.id, task)

    def _log(self, node: int) -> Path:
        """Return the path of the log of a node's agent."""
        return self._folder / f"agent{node}.log"

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Submit a new job with a task for this node."""
        assert command is not None
        self._submit([command], token)
        return None

    def abandon(self, node: int) -> None:
        """Forget the task of this node, so that its failure does not end the job."""
        self._places.pop(node, None)

    def poll(self) -> tuple[State, str]:
        """Return PENDING until every task has opened its log, and ENDED as soon as one failed."""
        failures = {
            (job.id, task): failure
            for job in self._submitted
            for task, failure in self._client.get_failed_tasks(job).items()
        }
        for node, place in self._places.items():
            if place in failures:
                log = self._log(node).with_suffix(".err")
                text = log.read_text(errors="replace", encoding="utf-8") if log.is_file() else ""
                last = last_line(text, failures[place].error)
                return State.ENDED, f"job {place[0]}: {last} (log {log})"
        waiting = sum(not self._log(node).exists() for node in self._places)
        if waiting:
            return State.PENDING, f"{waiting} of {self._nodes} tasks wait for a worker"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Wait until the agents have exited, which they do after their connections are closed.

        Raise LaunchError if tasks still wait for a worker, because only ``hq`` can cancel them.
        """
        submitted = self._submitted
        self._submitted = []
        self._places = {}
        deadline = time.monotonic() + STOP_S
        for job in submitted:
            if not self._over(job, deadline):
                raise LaunchError(
                    f"job {job.id} does not end",
                    where="hyperqueue engine",
                    expected="every task has a worker",
                    fix=f"hq job cancel {job.id}",
                )

    def _over(self, job: Any, deadline: float) -> bool:
        """Return whether all tasks of a job end by the deadline; the client asks every second."""

        class QueueTimeout(Exception):
            """Raised inside the client to stop waiting, because the deadline has passed."""

        def look(_: object) -> None:
            if time.monotonic() > deadline:
                raise QueueTimeout

        with contextlib.suppress(Exception):
            self._client.connection.wait_for_jobs([job.id], look)
            return True
        return False


def build() -> HyperQueue:
    """Return the engine."""
    return HyperQueue()
