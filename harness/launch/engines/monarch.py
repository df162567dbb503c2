"""Engine for Monarch: an actor on each worker host starts the agent and holds its process.

The engine needs the extra ``scaleproof[monarch]`` and running worker loops of Monarch, whose
addresses are in ``workers``. Monarch's jobs for Slurm and Kubernetes start such loops. The engine
uses Monarch's actors, but not its tensor engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from harness.base.errors import LaunchError, SpecError
from harness.launch.dialers import Host, agent
from harness.launch.engine import Capabilities, Command, Deployment, Job, State, importable
from harness.launch.wire.channel import Channel, read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    workers=[], wait_s=60, listen="", port=0, token_file="", python="", one_machine=False,
)  # fmt: skip

#: Seconds to wait for the answer of an actor. After that, the actor or its host counts as lost.
ANSWER_S = 10.0
#: Monarch's setting for connections without certificates. This client trusts the network, as the
#: worker loops do.
TRUST = "trust_all_connections"


class Monarch:
    """The engine for Monarch."""

    def probe(self) -> Capabilities:
        """Return whether the package is installed; the workers are only used by ``start``."""
        if importlib.util.find_spec("monarch") is None:
            return Capabilities(
                available=False,
                reason="monarch is not installed (pip install 'scaleproof[monarch]')",
            )
        return Capabilities(available=True, version=metadata.version("torchmonarch"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the command that each actor runs.

        The token travels in a message of Monarch and then through a pipe to the agent.
        """
        workers = deployment.settings["workers"]
        if len(workers) < len(deployment.nodes):
            raise SpecError(
                f"--nodes requests {len(deployment.nodes)} nodes, but {len(workers)} are listed",
                where="[monarch] workers",
                expected='the address of a worker loop for each node, like "tcp://gpu01:26600"',
                fix=f"--nodes {len(workers)}" if workers else "workers = [...] in --cluster FILE",
            )
        return tuple(self.again(deployment, node, "") for node in range(len(deployment.nodes)))

    def again(self, deployment: Deployment, node: int, host: str) -> Command:
        """Return the command that starts the agent of one node again."""
        argv = agent(deployment, f"--order={node}", token="/dev/stdin")
        return Command(nodes=(node,), argv=tuple(argv), env=importable())

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> MonarchActors:
        """Connect to the workers and start the agents."""
        return MonarchActors(commands, deployment)


class MonarchActors(Job):
    """One actor on each host, which holds the process of an agent.

    Only this class imports the package ``monarch``, because the import takes a second.
    """

    def __init__(self, commands: Sequence[Command], deployment: Deployment) -> None:
        import monarch.actor

        # By default Monarch ends this whole program if a host is lost. The loss is noticed through
        # the agents' channels instead.
        monarch.actor.unhandled_fault_hook = lambda failure: None
        workers = deployment.settings["workers"][: len(commands)]
        wait_s = float(deployment.settings["wait_s"])
        self._processes: Any = None
        try:
            hosts = monarch.actor.attach_to_workers(ca=TRUST, workers=workers)
            hosts.initialized.get(timeout=wait_s)
            self._processes = hosts.spawn_procs(per_host={"agent": 1}, name="scaleproof")
            actors = self._processes.spawn("agents", _holder(monarch.actor))
            self._actors: list[Any] = [actors.slice(hosts=i, agent=0) for i in range(len(workers))]
            token = read_token(deployment.token_file)
            begun = [
                actor.begin.call_one(command.argv, dict(command.env), token)
                for actor, command in zip(self._actors, commands, strict=True)
            ]
            for answer in begun:
                answer.get(timeout=wait_s)
        except BaseException as error:
            self._actors = []
            self.stop()
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            text = str(error).strip().splitlines()[:1] or [f"no answer within {wait_s:g} s"]
            raise LaunchError(
                text[0],
                where="monarch engine",
                expected=f"worker loops at {', '.join(workers)}",
                fix=_WORKER.format(workers[0]),
            ) from None

    def renew(self, node: int, command: Command | None, token: bytes) -> Channel | None:
        """Start another agent in the same actor."""
        assert command is not None
        try:
            begun = self._actors[node].begin.call_one(command.argv, dict(command.env), token)
            begun.get(timeout=ANSWER_S)
        except Exception as error:
            raise LaunchError(f"its actor does not answer: {type(error).__name__}") from None
        return None

    def poll(self) -> tuple[State, str]:
        """Return ENDED as soon as one agent, or the actor that holds it, has ended."""
        asked = [actor.ask.call_one() for actor in self._actors]
        deadline = time.monotonic() + ANSWER_S
        for i, answer in enumerate(asked):
            try:
                says = answer.get(timeout=max(0.1, deadline - time.monotonic()))
            except Exception as error:
                says = type(error).__name__
            if says:
                return State.ENDED, f"actor {i}: {says}"
        return State.RUNNING, ""

    def stop(self) -> None:
        """End the agents, the actors and their processes; the worker loops keep running."""
        actors = self._actors
        processes = self._processes
        self._actors = []
        self._processes = None
        for answer in [actor.end.call_one() for actor in actors]:
            with contextlib.suppress(Exception):
                answer.get(timeout=ANSWER_S)
        if processes is not None:
            with contextlib.suppress(Exception):
                processes.stop().get(timeout=ANSWER_S)


def _holder(actor: Any) -> Any:
    """Return the class of the actors.

    It is defined in a function because its base class belongs to Monarch, which this module imports
    only if it is used. Monarch sends the class to the hosts by value.
    """

    class Held(actor.Actor):  # type: ignore[misc]
        @actor.endpoint  # type: ignore[untyped-decorator]
        def begin(self, argv: Sequence[str], env: Mapping[str, str], token: bytes) -> None:
            self.host = Host(argv, env, token)

        @actor.endpoint  # type: ignore[untyped-decorator]
        def ask(self) -> str:
            return self.host.poll()

        @actor.endpoint  # type: ignore[untyped-decorator]
        def end(self) -> None:
            self.host.stop()

    return Held


#: The command that starts a worker loop by hand, as a format string with the address.
_WORKER = (
    "python -c \"from monarch.actor import run_worker_loop_forever as run; run(address='{}', "
    f"ca='{TRUST}')\""
)


def build() -> Monarch:
    """Return the engine."""
    return Monarch()
