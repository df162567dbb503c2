"""Engine for Kubernetes: an indexed Job whose pods are the nodes, with a headless Service.

If the cluster supports them, ``kind`` selects a JobSet or a TrainJob instead. The runtime of a
TrainJob determines the shared memory of its pods. The engine needs the extra
``scaleproof[kubernetes]`` and an address of this machine that pods can reach (``listen``).

Tests check the manifests against the published schemas, and run the conformance suite with a strict
simulated API server. The engine has not been tested with a real cluster.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from harness.base import programs
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import Device
from harness.host.admission import CPUS_PER_GPU
from harness.launch.dialers import WAIT_S
from harness.launch.engine import RANK_ENV, Capabilities, Command, Deployment, Job, State
from harness.launch.wire.channel import read_token

ENGINE = dict(multi_node=True, joins=True, remote=True)
SETTINGS = dict(
    kind="job", image="", namespace="default", name="scaleproof", python="python3",
    deadline_s=86400, shared_memory="8Gi", gpu_resource="nvidia.com/gpu", host="",
    listen="", port=0, token_file="", one_machine=False, stuck_s=600, service_account="",
    image_pull_secrets=[], node_selector=[], tolerations=[], capabilities=[], resources=[],
    labels=[], annotations=[],
)  # fmt: skip
#: Kinds of objects that can run the pods.
KINDS = ("job", "jobset", "trainjob")
#: Settings of pods. The pods of a TrainJob get them from its runtime instead.
OF_PODS = (
    "service_account", "image_pull_secrets", "node_selector", "tolerations", "capabilities",
    "resources", "annotations",
)  # fmt: skip
#: Seconds that ``stop`` may wait until all objects and pods are gone.
STOP_S = 60.0
#: First and longest pause, in seconds, between requests to a cluster that does not answer.
BACKOFF_S = (1.0, 60.0)
#: Reasons of Kubernetes for a waiting container that will not start without help.
STUCK = frozenset({
    "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull",
    "CreateContainerConfigError", "CreateContainerError", "CrashLoopBackOff",
})  # fmt: skip
#: The label that identifies the pods of one run. The name is not enough, because the pods of an
#: earlier run with the same name may still be terminating.
RUN = "scaleproof.io/run"


def manifests(deployment: Deployment) -> str:
    """Return the manifests of all objects as YAML, except for the Secret with the token.

    The Secret is never written to a file. Raise SpecError for invalid settings.
    """
    asked = deployment.settings
    if not asked["image"]:
        raise SpecError(
            "the setting image is empty",
            where="[kubernetes]",
            expected='image = "registry/scaleproof:tag"',
            fix="edit the cluster file",
        )
    if asked["kind"] not in KINDS:
        raise SpecError(
            f"the kind {asked['kind']!r} is unknown",
            where="[kubernetes]",
            expected=", ".join(KINDS),
            fix="edit the cluster file",
        )
    if asked["kind"] == "trainjob" and len(set(deployment.nodes)) > 1:
        raise SpecError(
            "the nodes of a TrainJob must have the same number of ranks",
            where="[kubernetes]",
            expected="the same number of ranks on every node, or kind = 'jobset'",
            fix="edit the cluster file",
        )
    if asked["kind"] == "trainjob" and (given := [n for n in OF_PODS if asked[n]]):
        raise SpecError(
            f"a TrainJob cannot set {given[0]}",
            where="[kubernetes]",
            expected="the runtime of the TrainJob has this setting, or kind = 'jobset'",
            fix="edit the cluster file",
        )
    groups = _groups(deployment.nodes)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, autoescape=False
    )
    command = [asked["python"], *programs.MODULE, programs.AGENT, "--join", deployment.join]
    return environment.get_template("kubernetes.yaml.jinja").render(
        **{name: value for name, value in asked.items() if name not in (*OF_PODS, "labels")},
        more_labels=_pairs(asked, "labels"),
        run=_run_of(deployment),
        pod=_pod(asked),
        container=_container(asked),
        more_resources=_pairs(asked, "resources"),
        pod_annotations=_pairs(asked, "annotations"),
        environment=RANK_ENV,
        command=[*command, f"--wait={WAIT_S:.0f}"],
        groups=groups,
        num_nodes=len(deployment.nodes),
        gpus=deployment.device is Device.CUDA,
        cpus_per_gpu=CPUS_PER_GPU,
    )


def selector(deployment: Deployment) -> str:
    """Return the label selector of this run's pods.

    The pods of a TrainJob come from its runtime and lack the label of the run. The TrainJob creates
    a JobSet with its name, so the JobSet's label selects them.
    """
    if deployment.settings["kind"] == "trainjob":
        return f"jobset.sigs.k8s.io/jobset-name={deployment.settings['name']}"
    return f"{RUN}={_run_of(deployment)}"


def _run_of(deployment: Deployment) -> str:
    """Return a unique name of this run: a hash of its folder, which no other run uses."""
    return hashlib.sha256(str(deployment.folder.resolve()).encode()).hexdigest()[:16]


def _pairs(asked: Mapping[str, Json], name: str) -> dict[str, str]:
    """Return a setting such as ``["pool=a100"]`` as a mapping.

    Raise SpecError for an entry that is not KEY=VALUE.
    """
    pairs = {}
    for text in asked[name]:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise SpecError(
                f"{name}: {text!r} is not KEY=VALUE",
                where="[kubernetes]",
                expected=f'{name} = ["KEY=VALUE"]',
                fix="edit the cluster file",
            )
        pairs[key] = value
    return pairs


def _toleration(text: str) -> dict[str, str]:
    """Parse a toleration of the form ``KEY[=VALUE]:EFFECT``, as kubectl writes a taint.

    Raise SpecError for any other form.
    """
    taint, colon, effect = text.rpartition(":")
    key, equals, value = taint.partition("=")
    if not (key and colon and effect in ("NoSchedule", "PreferNoSchedule", "NoExecute")):
        raise SpecError(
            f"tolerations: {text!r} is not KEY[=VALUE]:EFFECT",
            where="[kubernetes]",
            expected='tolerations = ["nvidia.com/gpu=present:NoSchedule"]',
            fix="edit the cluster file",
        )
    if not equals:
        return {"key": key, "operator": "Exists", "effect": effect}
    return {"key": key, "operator": "Equal", "value": value, "effect": effect}


def _pod(asked: Mapping[str, Json]) -> dict[str, Json]:
    """Return the optional fields of a pod's specification that the settings ask for."""
    given = {
        "serviceAccountName": asked["service_account"],
        "imagePullSecrets": [{"name": name} for name in asked["image_pull_secrets"]],
        "nodeSelector": _pairs(asked, "node_selector"),
        "tolerations": [_toleration(text) for text in asked["tolerations"]],
    }
    return {name: value for name, value in given.items() if value}


def _container(asked: Mapping[str, Json]) -> dict[str, Json]:
    """Return the optional fields of a container: its added Linux capabilities."""
    added = list(asked["capabilities"])
    return {"securityContext": {"capabilities": {"add": added}}} if added else {}


def _groups(nodes: Sequence[int]) -> list[dict[str, int]]:
    """Group consecutive nodes with the same number of ranks.

    Each group states the number of nodes, the ranks on each, and the number of its first node.
    """
    groups = []
    first = 0
    for ranks, same in itertools.groupby(nodes):
        groups.append(dict(num_nodes=len(list(same)), ranks=ranks, first=first))
        first += groups[-1]["num_nodes"]
    return groups


class Kubernetes:
    """The engine for Kubernetes."""

    def probe(self) -> Capabilities:
        """Return whether the client is installed; the cluster is only used by ``start``."""
        if importlib.util.find_spec("kubernetes") is None:
            return Capabilities(
                available=False,
                reason="kubernetes is not installed (pip install 'scaleproof[kubernetes]')",
            )
        return Capabilities(available=True, version=metadata.version("kubernetes"))

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the manifests, with the kubectl command that would apply them."""
        path = str(deployment.folder / "manifests.yaml")
        nodes = tuple(range(len(deployment.nodes)))
        argv = ("kubectl", "apply", "-f", path)
        return (Command(nodes=nodes, argv=argv, files={path: manifests(deployment)}),)

    def start(self, commands: tuple[Command, ...], deployment: Deployment) -> Pods:
        """Create the objects in the cluster."""
        return Pods(deployment)


class Pods(Job):
    """The objects of a run in the cluster: a Secret, and the objects that it owns.

    Deleting the Secret deletes all of them. Only this class imports the client. An expired token, a
    proxy or a restart of the API server must not end a run whose agents are still connected, so
    failed requests are repeated with growing pauses.
    """

    def __init__(self, deployment: Deployment) -> None:
        import kubernetes
        import urllib3
        import yaml

        self._error = kubernetes.client.ApiException
        # The client raises these errors if it receives, for example, an error page of a proxy.
        odd = (ValueError, AttributeError, KeyError, TypeError)
        self._unanswered = (self._error, urllib3.exceptions.HTTPError, *odd)
        asked = deployment.settings
        self._asked = asked
        self._folder = deployment.folder
        self._namespace = asked["namespace"]
        self._selector = selector(deployment)
        self._made: list[tuple[Any, str]] = []
        self._root: dict[str, str] | None = None
        self._token = read_token(deployment.token_file).decode()
        self._said: tuple[State, str] = (State.PENDING, "")
        self._asked_again_at = 0.0
        self._backoff_s = BACKOFF_S[0]
        self._stuck_since: float | None = None
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": asked["name"],
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/name": "scaleproof", RUN: _run_of(deployment)},
            },
            "stringData": {"token": self._token},
        }
        try:
            self._api = self._client()
            self._root = {}  # from now on the Secret may exist, even if its creation fails
            self._root = self._owner(self._create(secret))
            for manifest in yaml.safe_load_all(manifests(deployment)):
                manifest["metadata"]["ownerReferences"] = [self._root]
                self._create(manifest)
                kind = self._kind(manifest["apiVersion"], manifest["kind"])
                self._made.append((kind, manifest["metadata"]["name"]))
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
            self.stop()
            raise LaunchError(
                f"the cluster does not answer: {error}",
                where="kubernetes engine",
                expected="the API server can be reached",
                fix="kubectl cluster-info",
            ) from None
        except odd as error:
            self.stop()
            raise LaunchError(
                f"{asked['host'] or 'the address of the cluster'} answers, but not as a Kubernetes"
                f" API server ({type(error).__name__})",
                where="kubernetes engine",
                expected="the https address of an API server, not of a proxy or another program",
                fix="kubectl cluster-info",
            ) from None
        except BaseException:  # also Ctrl-C between the creation of two objects
            self.stop()
            raise

    def _client(self) -> Any:
        """Return a client that caches facts about the cluster in the folder of this run.

        By default they are cached in a temporary folder that all runs share.
        """
        import kubernetes

        self._folder.mkdir(parents=True, exist_ok=True)
        notes = str(self._folder / "discovery.json")
        client = _client(kubernetes, self._asked["host"])
        return kubernetes.dynamic.DynamicClient(client, cache_file=notes)

    def _advice(self, status: int, asked: Mapping[str, Json]) -> tuple[str, str]:
        """Return the expected state of the cluster and a command to check it.

        ``status`` is the HTTP status of the failed request.
        """
        if status == 404:
            return f"a cluster that supports kind {asked['kind']!r}", "kubectl api-resources"
        if status == 409:
            return "no other run with this name", f"kubectl get all,secret -n {self._namespace}"
        return (
            "permission to create secrets, services and jobs",
            f"kubectl auth can-i create jobs -n {self._namespace}",
        )

    def _kind(self, version: str, kind: str) -> Any:
        """Return the client's interface to the objects of a kind."""
        return self._api.resources.get(api_version=version, kind=kind)

    def _create(self, manifest: dict[str, Json]) -> Any:
        """Create an object in the cluster."""
        kind = self._kind(manifest["apiVersion"], manifest["kind"])
        return kind.create(body=manifest, namespace=self._namespace)

    def _owner(self, secret: Any) -> dict[str, str]:
        """Return the reference that makes the Secret the owner of an object."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": secret.metadata.name,
            "uid": secret.metadata.uid,
        }

    def poll(self) -> tuple[State, str]:
        """Return PENDING while any pod is pending, and ENDED as soon as one has ended.

        If the cluster does not answer, the last state is returned again. Requests then become less
        frequent, and each uses a client that has read its credentials again.
        """
        if time.monotonic() < self._asked_again_at:
            return self._said
        try:
            self._said = self._judged(self._pods())
            self._backoff_s = BACKOFF_S[0]
        except self._unanswered:
            self._asked_again_at = time.monotonic() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])
            with contextlib.suppress(LaunchError, *self._unanswered):
                self._api = self._client()
        return self._said

    def _judged(self, pods: Sequence[Any]) -> tuple[State, str]:
        """Return the state of the job that follows from the phases of its pods."""
        phases = {pod.metadata.name: pod.status.phase for pod in pods}
        over = [
            f"{name} {word}" for name, word in phases.items() if word in ("Failed", "Succeeded")
        ]
        over += [
            f"{pod.metadata.name} is deleted: evicted, preempted, or by hand"
            for pod in pods
            if pod.metadata.deletionTimestamp
        ]
        if over:
            return State.ENDED, over[0]
        if not phases or "Pending" in phases.values():
            waiting = sum(phase == "Pending" for phase in phases.values())
            reason = next((text for pod in pods for text in _why_stuck(pod)), "")
            says = f"{waiting} of {len(phases)} pods pending" + (f": {reason}" if reason else "")
            return self._patient(bool(reason)), says
        self._stuck_since = None
        return State.RUNNING, ""

    def _patient(self, stuck: bool) -> State:
        """Return PENDING, or ENDED if pods have been unable to start for ``stuck_s`` seconds."""
        if not stuck:
            self._stuck_since = None
            return State.PENDING
        if self._stuck_since is None:
            self._stuck_since = time.monotonic()
        most_s = float(self._asked["stuck_s"])
        late = most_s > 0 and time.monotonic() - self._stuck_since > most_s
        return State.ENDED if late else State.PENDING

    def stop(self) -> None:
        """Delete all objects that still exist, and wait until the pods are gone.

        The cluster deletes what the Secret owns, even if only the request to delete the Secret
        arrives.
        """
        root, created = self._root, self._made
        self._root = None
        self._made = []
        if root is None:
            return
        deadline = time.monotonic() + STOP_S
        for kind, name in reversed(created):
            with contextlib.suppress(*self._unanswered):
                behind = {"propagationPolicy": "Background"}
                kind.delete(name=name, namespace=self._namespace, body=behind)
        while not self._root_gone(root) and time.monotonic() < deadline:
            time.sleep(0.5)
        while created and time.monotonic() < deadline:
            with contextlib.suppress(*self._unanswered):
                if not self._listed():
                    return
            time.sleep(0.5)

    def _root_gone(self, root: dict[str, str]) -> bool:
        """Ask the cluster to delete the Secret, and return whether nothing is left to delete.

        If the cluster never confirmed its creation, the Secret belongs to this run only if it holds
        this run's token, because another run may use the same name.
        """
        name = self._asked["name"]
        try:
            secrets = self._kind("v1", "Secret")
            if "uid" not in root:
                there = secrets.get(name=name, namespace=self._namespace)
                if base64.b64decode(there.data["token"]).decode() != self._token:
                    return True
                root |= self._owner(there)
            body = {"propagationPolicy": "Background", "preconditions": {"uid": root["uid"]}}
            secrets.delete(name=name, namespace=self._namespace, body=body)
        except self._error as error:
            return error.status in (403, 404, 409)  # not permitted, not there, or another Secret
        except self._unanswered:
            return False
        return True

    def _pods(self) -> Sequence[Any]:
        """Return the pods of this run.

        Terminating pods of a TrainJob are left out, because they belong to an earlier run with the
        same name.
        """
        listed = self._listed()
        if self._asked["kind"] != "trainjob":
            return listed
        return [pod for pod in listed if not pod.metadata.deletionTimestamp]

    def _listed(self) -> Sequence[Any]:
        """Return all pods that the label selector matches, including terminating ones."""
        pods = self._kind("v1", "Pod")
        listed: Sequence[Any] = pods.get(
            namespace=self._namespace, label_selector=self._selector
        ).items
        return listed


def _why_stuck(pod: Any) -> Iterator[str]:
    """Yield the reasons why a pod cannot start without help."""
    for container in pod.status.containerStatuses or ():
        waiting = container.state.waiting if container.state else None
        if waiting and waiting.reason in STUCK:
            yield f"{pod.metadata.name}: {waiting.reason}: {waiting.message or ''}".rstrip(": ")
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            yield f"{pod.metadata.name}: Unschedulable: {condition.message or ''}".rstrip(": ")


def _client(kubernetes: Any, host: str) -> Any:
    """Return a client for the API server at ``host``, or for the configured one without a host.

    Raise LaunchError if no server is configured.
    """
    if host:
        return kubernetes.client.ApiClient(kubernetes.client.Configuration(host=host))
    try:
        kubernetes.config.load_config()
    except kubernetes.config.ConfigException as error:
        raise LaunchError(
            f"no cluster is configured: {error}",
            where="kubernetes engine",
            expected="~/.kube/config, the variable KUBECONFIG, or a program that runs in a pod",
            fix="kubectl cluster-info",
        ) from None
    return kubernetes.client.ApiClient()


def build() -> Kubernetes:
    """Return the engine."""
    return Kubernetes()
