"""Kubernetes: an indexed Job whose pods are the nodes, behind a headless Service.

A JobSet or a TrainJob instead where the cluster has them (``kind``); a TrainJob's pods have the
shared memory of its runtime. Needs the extra ``scaleproof[kubernetes]`` and an address of this
machine that pods can reach (``listen``). The manifests are checked against the published schemas
and the client against a stub: no cluster was in the loop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.launch.dialers import WAIT_S
from harness.launch.engine import RANK_ENV, Capabilities, Command, Deployment, State
from harness.launch.wire.channel import Channel, read_token
from harness.launch.wire.messages import LaunchSpec
from harness.spec import Device

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    kind="job", image="", namespace="default", name="scaleproof", python="python3",
    deadline_s=86400, shared_memory="8Gi", gpu_resource="nvidia.com/gpu", host="",
    listen="", port=0, token_file="", one_machine=False,
)  # fmt: skip
KINDS = ("job", "jobset", "trainjob")
#: Where a custom kind lives: group, version, plural.
CUSTOM = {
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
}
STOP_S = 60.0


def manifests(deployment: Deployment) -> list[dict[str, Json]]:
    """What is created, in this order; the token's Secret aside, which no file ever holds."""
    asked = deployment.settings
    if not asked["image"]:
        raise SpecError(
            "no image", where="[kubernetes]", expected='image = "registry/scaleproof:tag"',
            fix="edit the cluster file",
        )  # fmt: skip
    if asked["kind"] not in KINDS:
        raise SpecError(
            f"kind {asked['kind']!r}", where="[kubernetes]", expected=", ".join(KINDS),
            fix="edit the cluster file",
        )  # fmt: skip
    if asked["kind"] == "trainjob" and len(set(deployment.nodes)) > 1:
        raise SpecError(
            "a TrainJob has nodes of one size", where="[kubernetes]", expected="kind = 'jobset'",
            fix="edit the cluster file",
        )  # fmt: skip
    if asked["kind"] == "trainjob":
        return _trainjob(deployment)  # makes pods and a Service of its own
    made = {"job": _jobs, "jobset": _jobset}[asked["kind"]](deployment)
    return [_service(asked), *made]


def selector(asked: Mapping[str, Json]) -> str:
    """Which pods are ours: by our own label, but for those that a TrainJob makes from its runtime.

    Of these it makes a JobSet of its own name.
    """
    label = "app.kubernetes.io/instance"
    if asked["kind"] == "trainjob":
        label = "jobset.sigs.k8s.io/jobset-name"
    return f"{label}={asked['name']}"


def _labels(asked: Mapping[str, Json]) -> dict[str, str]:
    return {"app.kubernetes.io/name": "scaleproof", "app.kubernetes.io/instance": asked["name"]}


def _meta(asked: Mapping[str, Json], name: str) -> dict[str, Json]:
    return {"name": name, "namespace": asked["namespace"], "labels": _labels(asked)}


def _service(asked: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(asked, asked["name"]),
        "spec": {"clusterIP": "None", "selector": _labels(asked), "publishNotReadyAddresses": True},
    }


def _container(deployment: Deployment, ranks: int, first: int) -> dict[str, Json]:
    """The agent: its place is the pod's index, its secret a variable that only the pod sees."""
    asked = deployment.settings
    env: list[Json] = [{"name": k, "value": v} for k, v in RANK_ENV.items()]
    secret = {"secretKeyRef": {"name": asked["name"], "key": "token"}}
    env.append({"name": "SCALEPROOF_TOKEN", "valueFrom": secret})
    env.append({"name": "SCALEPROOF_FIRST", "value": str(first)})
    command = [asked["python"], "-m", programs.AGENT, "--join", deployment.join]
    command.append(f"--wait={WAIT_S:.0f}")
    out: dict[str, Json] = {
        "name": "agent",
        "image": asked["image"],
        "command": command,
        "env": env,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if deployment.device is Device.CUDA:
        out["resources"] = {"limits": {asked["gpu_resource"]: str(ranks)}}
    else:
        out["resources"] = {"requests": {"cpu": str(ranks)}}
    return out


def _job_spec(deployment: Deployment, num_nodes: int, ranks: int, first: int) -> dict[str, Json]:
    """One pod for each node; none is ever started again, and no end is waited for without end."""
    asked = deployment.settings
    shm = {"medium": "Memory", "sizeLimit": asked["shared_memory"]}
    pod: dict[str, Json] = {
        "restartPolicy": "Never",
        "subdomain": asked["name"],
        "containers": [_container(deployment, ranks, first)],
        "volumes": [{"name": "shm", "emptyDir": shm}],
    }
    return {
        "completionMode": "Indexed",
        "completions": num_nodes,
        "parallelism": num_nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": asked["deadline_s"],
        "template": {"metadata": {"labels": _labels(asked)}, "spec": pod},
    }


def _groups(nodes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(nodes, ranks on each, number of the first) of neighbours of one size."""
    out: list[tuple[int, int, int]] = []
    for i, ranks in enumerate(nodes):
        if out and out[-1][1] == ranks:
            out[-1] = (out[-1][0] + 1, ranks, out[-1][2])
        else:
            out.append((1, ranks, i))
    return out


def _jobs(deployment: Deployment) -> list[dict[str, Json]]:
    asked, out = deployment.settings, []
    groups = _groups(deployment.nodes)
    for i, (num_nodes, ranks, first) in enumerate(groups):
        name = asked["name"] if len(groups) == 1 else f"{asked['name']}-{i}"
        spec = _job_spec(deployment, num_nodes, ranks, first)
        out.append(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(asked, name), "spec": spec}
        )
    return out


def _jobset(deployment: Deployment) -> list[dict[str, Json]]:
    asked = deployment.settings
    jobs = [
        {
            "name": f"nodes-{i}",
            "replicas": 1,
            "template": {"spec": _job_spec(deployment, num_nodes, ranks, first)},
        }
        for i, (num_nodes, ranks, first) in enumerate(_groups(deployment.nodes))
    ]
    group, version, _ = CUSTOM["JobSet"]
    return [
        {
            "apiVersion": f"{group}/{version}",
            "kind": "JobSet",
            "metadata": _meta(asked, asked["name"]),
            "spec": {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 0}},
        }
    ]


def _trainjob(deployment: Deployment) -> list[dict[str, Json]]:
    asked = deployment.settings
    container = _container(deployment, deployment.nodes[0], 0)
    group, version, _ = CUSTOM["TrainJob"]
    return [
        {
            "apiVersion": f"{group}/{version}",
            "kind": "TrainJob",
            "metadata": _meta(asked, asked["name"]),
            "spec": {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {
                    "image": container["image"],
                    "command": container["command"],
                    "env": container["env"],
                    "numNodes": len(deployment.nodes),
                    "resourcesPerNode": container["resources"],
                },
            },
        }
    ]


class Kubernetes:
    """The engine."""

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
        text = "\n---\n".join(json.dumps(m, indent=1) for m in manifests(deployment))
        path = str(deployment.folder / "manifests.json")
        nodes = tuple(range(len(deployment.nodes)))
        argv = ("kubectl", "apply", "-f", path)
        return (Command(nodes=nodes, argv=argv, files={path: text}),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Pods:
        """Create all of it."""
        return Pods(deployment)


class Pods:
    """What was created in the cluster. The client is imported here only."""

    def __init__(self, deployment: Deployment) -> None:
        import kubernetes
        import urllib3

        self._k8s: Any = kubernetes.client
        asked = deployment.settings
        self._namespace, self._selector = asked["namespace"], selector(asked)
        if asked["host"]:
            api = self._k8s.ApiClient(self._k8s.Configuration(host=asked["host"]))
        else:
            try:
                kubernetes.config.load_config()
            except kubernetes.config.ConfigException as error:
                raise LaunchError(
                    f"no cluster is configured: {error}", where="kubernetes engine",
                    expected="~/.kube/config, KUBECONFIG, or to run in a pod",
                    fix="kubectl cluster-info",
                ) from None  # fmt: skip
            api = self._k8s.ApiClient()
        self._core, self._batch = self._k8s.CoreV1Api(api), self._k8s.BatchV1Api(api)
        self._custom = self._k8s.CustomObjectsApi(api)
        self._made: list[tuple[str, str]] = []
        token = read_token(deployment.token_file).decode()
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _meta(asked, asked["name"]),
            "stringData": {"token": token},
        }
        try:
            for manifest in [secret, *manifests(deployment)]:
                self._create(manifest)
        except self._k8s.ApiException as error:
            self.stop()
            expected, fix = self._advice(error.status, asked)
            raise LaunchError(
                f"{error.status} {error.reason}", where="kubernetes engine",
                expected=expected, fix=fix,
            ) from None  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(
                f"the cluster does not answer: {error}", where="kubernetes engine",
                expected="an API server that can be reached", fix="kubectl cluster-info",
            ) from None  # fmt: skip

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
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind in CUSTOM:
            group, version, plural = CUSTOM[kind]
            self._custom.create_namespaced_custom_object(
                group, version, self._namespace, plural, manifest
            )
        else:
            create = {
                "Secret": self._core.create_namespaced_secret,
                "Service": self._core.create_namespaced_service,
                "Job": self._batch.create_namespaced_job,
            }[kind]
            create(self._namespace, manifest)
        self._made.append((kind, name))

    def prepare(self, spec: LaunchSpec) -> None:
        """Nothing to do before a launch."""

    def channels(self) -> Mapping[int, Channel]:
        """They all dial in."""
        return {}

    def poll(self) -> tuple[State, str]:
        """By the pods' phases: pending while any is, ended as soon as one has."""
        phases = {p.metadata.name: p.status.phase for p in self._pods()}
        over = [
            f"{name} {phase}" for name, phase in phases.items() if phase in ("Failed", "Succeeded")
        ]
        if over:
            return State.ENDED, over[0]
        if not phases or "Pending" in phases.values():
            waiting = sum(phase == "Pending" for phase in phases.values())
            return State.PENDING, f"{waiting} of {len(phases)} pods pending"
        return State.RUNNING, ""

    def stop(self) -> None:
        """Delete it all, whatever of it is gone already, and wait until the pods are gone."""
        made, self._made = self._made, []
        for kind, name in reversed(made):
            with contextlib.suppress(self._k8s.ApiException):
                self._delete(kind, name)
        deadline = time.monotonic() + STOP_S
        while made and self._pods() and time.monotonic() < deadline:
            time.sleep(0.5)

    def _delete(self, kind: str, name: str) -> None:
        if kind in CUSTOM:
            group, version, plural = CUSTOM[kind]
            self._custom.delete_namespaced_custom_object(
                group, version, self._namespace, plural, name
            )
        elif kind == "Job":
            self._batch.delete_namespaced_job(
                name, self._namespace, propagation_policy="Background"
            )
        elif kind == "Service":
            self._core.delete_namespaced_service(name, self._namespace)
        else:
            self._core.delete_namespaced_secret(name, self._namespace)

    def _pods(self) -> Sequence[Any]:
        found = self._core.list_namespaced_pod(self._namespace, label_selector=self._selector)
        items: Sequence[Any] = found.items
        return items


def build() -> Kubernetes:
    """The engine."""
    return Kubernetes()
