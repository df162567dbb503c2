"""HyperQueue: a task on a worker of its own for each agent.

Needs the extra ``scaleproof[hyperqueue]`` and a server that runs. Its folder (``server_dir``) and
the folder of results are on a disk that all workers share, as HyperQueue asks anyway.
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

#: Seconds for tasks to end once nobody talks to their agents.
STOP_S = 30.0


class HyperQueue:
    def probe(self) -> Capabilities:
        """Needs the package; whether a server answers is seen when tasks are submitted."""
        if importlib.util.find_spec("hyperqueue") is None:
            return Capabilities(
                available=False,
                reason="hyperqueue is not installed (pip install 'scaleproof[hyperqueue]')",
            )
        return Capabilities(available=True, version=metadata.version("hyperqueue"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Plans what each task runs; its token comes with the task, on stdin."""
        return tuple(self.again(deployment, node, "") for node in range(len(deployment.nodes)))

    def again(self, deployment: Deployment, node: int, host: str) -> Command:
        """The task of one node: any worker that is free."""
        argv = agent(deployment, f"--order={node}", token="/dev/stdin")
        return Command(nodes=(node,), argv=tuple(argv), env=importable())

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Tasks:
        """Submit a job of one task for each node."""
        return Tasks(commands, deployment)


class Tasks(Job):
    """Tasks in the server's queue, then on their workers. The package is imported here only."""

    def __init__(self, commands: Sequence[Command], deployment: Deployment) -> None:
        import hyperqueue
        from hyperqueue.ffi.protocol import ResourceRequest

        self._job_of: Any = hyperqueue.Job
        # A whole worker: two agents are never on one, however many cores and devices it has.
        self._whole_worker = ResourceRequest(n_nodes=1, cpus=0)
        self._folder = deployment.folder
        self._submitted: list[Any] = []
        self._places: dict[int, tuple[int, int]] = {}  # node -> (job, task) of its agent
        self._nodes = len(commands)
        where = str(deployment.settings["server_dir"]) or os.environ.get("HQ_SERVER_DIR")
        try:
            self._client: Any = hyperqueue.Client(where)
            self._submit(commands, read_token(deployment.token_file))
        except Exception as error:  # the package raises nothing more special
            first = str(error).strip().splitlines()[:1]  # below it is a trace of the package's
            raise LaunchError(
                f"no server takes tasks: {(first or [type(error).__name__])[0]}",
                where="hyperqueue engine",
                expected=f"a HyperQueue server in {where or '~/.hq-server'}",
                fix="hq server info",
            ) from None

    def _submit(self, commands: Sequence[Command], token: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        job = self._job_of(name="scaleproof", max_fails=None)  # the others go on
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
                crash_limit=1,  # an agent that is started again by the server would find nobody
            )
        submitted = self._client.submit(job)
        self._submitted.append(submitted)
        for task, command in enumerate(commands):
            self._places[command.nodes[0]] = (submitted.id, task)

    def _log(self, node: int) -> Path:
        return self._folder / f"agent{node}.log"

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """A task of its own."""
        assert command is not None
        self._submit([command], token)
        return None

    def abandon(self, node: int) -> None:
        """Its failure ends nothing any more."""
        self._places.pop(node, None)

    def poll(self) -> tuple[State, str]:
        """Pending until every task has opened its log; ended as soon as one has failed."""
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
        """Wait until the agents have left: they do, once nobody talks to them.

        LaunchError for tasks that still wait for a worker: only ``hq`` can withdraw them.
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
                    expected="tasks that have a worker",
                    fix=f"hq job cancel {job.id}",
                )

    def _over(self, job: Any, deadline: float) -> bool:
        """Whether all its tasks ended before that; the server is asked once a second."""

        class Late(Exception):
            """The deadline has passed."""

        def look(_: object) -> None:
            if time.monotonic() > deadline:
                raise Late

        with contextlib.suppress(Exception):
            self._client.connection.wait_for_jobs([job.id], look)
            return True
        return False


def build() -> HyperQueue:
    return HyperQueue()
