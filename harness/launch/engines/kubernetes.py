"""Kubernetes: an indexed Job whose pods are the nodes, behind a headless Service.

A JobSet or a TrainJob instead where the cluster has them (``kind``); a TrainJob's pods have the
shared memory of its runtime. Needs the extra ``scaleproof[kubernetes]`` and an address of this
machine that pods can reach (``listen``). The manifests are checked against the published schemas
and the client against a stub: no cluster was in the loop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import Device
from harness.launch.dialers import WAIT_S
from harness.launch.engine import RANK_ENV, Capabilities, Command, Deployment, Job, State
from harness.launch.wire.channel import read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    kind="job", image="", namespace="default", name="scaleproof", python="python3",
    deadline_s=86400, shared_memory="8Gi", gpu_resource="nvidia.com/gpu", host="",
    listen="", port=0, token_file="", one_machine=False,
)  # fmt: skip
KINDS = ("job", "jobset", "trainjob")
STOP_S = 60.0


def manifests(deployment: Deployment) -> str:
    """What is created, as YAML; the token's Secret aside, which no file ever holds."""
    asked = deployment.settings
    if not asked["image"]:
        raise SpecError(
            "no image",
            where="[kubernetes]",
            expected='image = "registry/scaleproof:tag"',
            fix="edit the cluster file",
        )
    if asked["kind"] not in KINDS:
        raise SpecError(
            f"kind {asked['kind']!r}",
            where="[kubernetes]",
            expected=", ".join(KINDS),
            fix="edit the cluster file",
        )
    if asked["kind"] == "trainjob" and len(set(deployment.nodes)) > 1:
        raise SpecError(
            "a TrainJob needs equal nodes",
            where="[kubernetes]",
            expected="kind = 'jobset'",
            fix="edit the cluster file",
        )
    groups = _groups(deployment.nodes)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, autoescape=False
    )
    command = [asked["python"], *programs.MODULE, programs.AGENT, "--join", deployment.join]
    return environment.get_template("kubernetes.yaml.jinja").render(
        **asked,
        environment=RANK_ENV,
        command=[*command, f"--wait={WAIT_S:.0f}"],
        groups=groups,
        num_nodes=len(deployment.nodes),
        gpus=deployment.device is Device.CUDA,
    )


def selector(asked: Mapping[str, Json]) -> str:
    """Which pods are ours: by our own label, but for those that a TrainJob makes from its runtime.

    Of these it makes a JobSet of its own name.
    """
    label = "app.kubernetes.io/instance"
    if asked["kind"] == "trainjob":
        label = "jobset.sigs.k8s.io/jobset-name"
    return f"{label}={asked['name']}"


def _groups(nodes: Sequence[int]) -> list[dict[str, int]]:
    """Neighbours of one size: how many, the ranks on each, the number of the first."""
    out = []
    first = 0
    for ranks, same in itertools.groupby(nodes):
        out.append(dict(num_nodes=len(list(same)), ranks=ranks, first=first))
        first += out[-1]["num_nodes"]
    return out


class Kubernetes:
    def probe(self) -> Capabilities:
        """Needs the client; whether a cluster answers is seen when it is started."""
        if importlib.util.find_spec("kubernetes") is None:
            return Capabilities(
                available=False,
                reason="the client is not installed (pip install 'scaleproof[kubernetes]')",
            )
        return Capabilities(available=True, version=metadata.version("kubernetes"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """The manifests, as kubectl would take them."""
        path = str(deployment.folder / "manifests.yaml")
        nodes = tuple(range(len(deployment.nodes)))
        argv = ("kubectl", "apply", "-f", path)
        return (Command(nodes=nodes, argv=argv, files={path: manifests(deployment)}),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Pods:
        return Pods(deployment)


class Pods(Job):
    """What was created in the cluster. The client is imported here only."""

    def __init__(self, deployment: Deployment) -> None:
        import kubernetes
        import urllib3
        import yaml

        self._error = kubernetes.client.ApiException
        asked = deployment.settings
        self._namespace = asked["namespace"]
        self._selector = selector(asked)
        self._made: list[tuple[Any, str]] = []
        token = read_token(deployment.token_file).decode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": asked["name"],
                "namespace": self._namespace,
                "labels": dict(pair.split("=") for pair in self._selector.split(",")),
            },
            "stringData": {"token": token},
        }
        try:
            self._api = kubernetes.dynamic.DynamicClient(_client(kubernetes, asked["host"]))
            for manifest in [secret, *yaml.safe_load_all(manifests(deployment))]:
                self._create(manifest)
        except (self._error, kubernetes.dynamic.exceptions.ResourceNotFoundError) as error:
            self.stop()
            status = getattr(error, "status", 404)
            expected, fix = self._advice(status, asked)
            raise LaunchError(
                f"{status} {getattr(error, 'reason', error)}",
                where="kubernetes engine",
                expected=expected,
                fix=fix,
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(
                f"the cluster does not answer: {error}",
                where="kubernetes engine",
                expected="a reachable API server",
                fix="kubectl cluster-info",
            ) from None

    def _advice(self, status: int, asked: Mapping[str, Json]) -> tuple[str, str]:
        """What the cluster should have had, and the command that shows it."""
        if status == 404:
            return f"a cluster that knows kind {asked['kind']!r}", "kubectl api-resources"
        if status == 409:
            return "no other run of this name", f"kubectl get all,secret -n {self._namespace}"
        return (
            "the right to create secrets, services and jobs",
            f"kubectl auth can-i create jobs -n {self._namespace}",
        )

    def _create(self, manifest: dict[str, Json]) -> None:
        kind = self._api.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
        kind.create(body=manifest, namespace=self._namespace)
        self._made.append((kind, manifest["metadata"]["name"]))

    def poll(self) -> tuple[State, str]:
        """By the pods' phases: pending while any is, ended as soon as one has."""
        phases = {p.metadata.name: p.status.phase for p in self._pods()}
        over = [
            f"{name} {word}" for name, word in phases.items() if word in ("Failed", "Succeeded")
        ]
        if over:
            return State.ENDED, over[0]
        if not phases or "Pending" in phases.values():
            waiting = sum(phase == "Pending" for phase in phases.values())
            return State.PENDING, f"{waiting} of {len(phases)} pods pending"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Delete it all, whatever of it is gone already, and wait until the pods are gone."""
        made = self._made
        self._made = []
        for kind, name in reversed(made):
            with contextlib.suppress(self._error):
                behind = {"propagationPolicy": "Background"}
                kind.delete(name=name, namespace=self._namespace, body=behind)
        deadline = time.monotonic() + STOP_S
        while made and self._pods() and time.monotonic() < deadline:
            time.sleep(0.5)

    def _pods(self) -> Sequence[Any]:
        pods = self._api.resources.get(api_version="v1", kind="Pod")
        listed: Sequence[Any] = pods.get(
            namespace=self._namespace, label_selector=self._selector
        ).items
        return listed


def _client(kubernetes: Any, host: str) -> Any:
    """A client of that API server, or of the one that is configured; LaunchError if none is."""
    if host:
        return kubernetes.client.ApiClient(kubernetes.client.Configuration(host=host))
    try:
        kubernetes.config.load_config()
    except kubernetes.config.ConfigException as error:
        raise LaunchError(
            f"no cluster is configured: {error}",
            where="kubernetes engine",
            expected="~/.kube/config, KUBECONFIG, or a pod",
            fix="kubectl cluster-info",
        ) from None
    return kubernetes.client.ApiClient()


def build() -> Kubernetes:
    return Kubernetes()
