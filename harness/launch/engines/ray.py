"""Engine for Ray: a placement group has one bundle per node, with an actor that starts the agent.

The engine needs the extra ``scaleproof[ray]`` and a running cluster. It does not use Ray Train.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from harness.base.documents import Json
from harness.base.errors import LaunchError
from harness.cases import Device
from harness.launch.dialers import Host, agent
from harness.launch.engine import (
    Capabilities,
    Command,
    Deployment,
    Job,
    State,
    importable,
)
from harness.launch.wire.channel import read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    address="auto", resource="", wait_s=60, strategy="STRICT_SPREAD",
    listen="", port=0, token_file="", python="", one_machine=False,
)  # fmt: skip


def bundles(deployment: Deployment) -> list[dict[str, float]]:
    """Return the resources to reserve on each node.

    Every rank gets one core, one GPU, or one unit of the custom ``resource`` of the cluster file.
    """
    resource = str(deployment.settings["resource"])
    kind = resource or ("GPU" if deployment.device is Device.CUDA else "CPU")
    return [{"CPU": 1.0, kind: float(ranks)} for ranks in deployment.nodes]


class Ray:
    """The engine for Ray."""

    def probe(self) -> Capabilities:
        """Return whether the package is installed; the cluster is only used by ``start``."""
        if importlib.util.find_spec("ray") is None:
            return Capabilities(
                available=False, reason="ray is not installed (pip install 'scaleproof[ray]')"
            )
        return Capabilities(available=True, version=metadata.version("ray"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the command that each actor runs.

        The token travels through Ray's channel and then through a pipe to the agent.
        """
        asked = deployment.settings
        return tuple(
            Command(
                nodes=(i,),
                argv=tuple(agent(deployment, f"--order={i}", token="/dev/stdin")),
                env=importable(),
                place=f"bundle {i} of a placement group {asked['strategy']}: {bundle}",
            )
            for i, bundle in enumerate(bundles(deployment))
        )

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> RayActors:
        """Reserve the nodes and start the agents."""
        return RayActors(commands, deployment)


class RayActors(Job):
    """A placement group and its actors.

    Only this class imports the package ``ray``, because the import takes a second.
    """

    def __init__(self, commands: Sequence[Command], deployment: Deployment) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray: Any = ray
        self._remove = remove_placement_group
        asked = deployment.settings
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not ray.is_initialized():
            try:
                ray.init(address=asked["address"], log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError) as error:
                raise _failed(f"no cluster answers: {error}", "ray status") from None
        self._group = placement_group(bundles(deployment), strategy=str(asked["strategy"]))
        self._hosts: list[Any] = []
        if not self._group.wait(float(asked["wait_s"])):
            self.stop()
            raise _failed(
                f"no resources for {bundles(deployment)} within {asked['wait_s']} s", "ray status"
            )
        token = read_token(deployment.token_file)
        remote: Any = ray.remote(Host)
        for i, (command, bundle) in enumerate(zip(commands, bundles(deployment), strict=True)):
            place = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=i
            )
            options = _options(bundle)
            actor = remote.options(scheduling_strategy=place, **options)
            self._hosts.append(actor.remote(command.argv, dict(command.env), token))

    def poll(self) -> tuple[State, str]:
        """Return ENDED as soon as one agent, or the actor that holds it, has ended."""
        for i, host in enumerate(self._hosts):
            try:
                reason = self._ray.get(host.poll.remote(), timeout=10)
            except self._ray.exceptions.RayError as error:
                reason = type(error).__name__
            if reason:
                return State.ENDED, f"actor {i}: {reason}"
        return State.RUNNING, ""

    def stop(self) -> None:
        """End the agents and the actors, and remove the placement group; the cluster stays."""
        for host in self._hosts:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(host.stop.remote(), timeout=10)
            self._ray.kill(host)
        self._hosts = []
        if self._group is not None:
            self._remove(self._group)
            self._group = None
        self._ray.shutdown()


def _options(bundle: Mapping[str, float]) -> dict[str, Json]:
    """Return the options of an actor that uses all resources of its bundle."""
    resources = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU")}
    return {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "resources": resources}


def _failed(what: str, fix: str) -> LaunchError:
    """Return an error about a Ray cluster that cannot be used."""
    return LaunchError(what, where="ray engine", expected="a Ray cluster with free nodes", fix=fix)


def build() -> Ray:
    """Return the engine."""
    return Ray()
