"""Kubernetes without a cluster: manifests follow the published schemas, the client uses a stub."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from harness.base.errors import LaunchError, SpecError
from harness.cases import Device
from harness.launch.engine import Deployment, State
from harness.launch.engines import kubernetes as engine
from harness.launch.wire.channel import make_token

VERSION = "1.33"


def manifests(made: Deployment) -> list[Any]:
    """Return the documents of the objects that would be created."""
    return list(yaml.safe_load_all(engine.manifests(made)))


def deployment(tmp_path: Path, nodes: tuple[int, ...] = (8, 8), **settings: Any) -> Deployment:
    asked = {**engine.SETTINGS, "image": "registry/scaleproof:1", **settings}
    return Deployment(
        nodes=nodes, device=Device.CUDA, join="10.0.0.1:4000", token_file=tmp_path / "token",
        folder=tmp_path, python=("python3",), settings=asked,
    )  # fmt: skip


@pytest.mark.parametrize("nodes", [(8, 8), (4, 8, 16)])
def test_manifests_are_valid_for_the_cluster(tmp_path: Path, nodes: tuple[int, ...]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    for manifest in manifests(deployment(tmp_path, nodes)):
        validate.validate(manifest, VERSION, strict=True)


def test_a_typo_in_a_manifest_would_be_found(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    job = manifests(deployment(tmp_path))[1]
    job["spec"]["parallelizm"] = 2
    with pytest.raises(validate.ValidationError):
        validate.validate(job, VERSION, strict=True)


def test_an_indexed_job_with_a_pod_for_each_node(tmp_path: Path) -> None:
    service, job = manifests(deployment(tmp_path))
    assert service["spec"]["clusterIP"] == "None"
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "32"}, "limits": {"nvidia.com/gpu": "8"},
    }  # fmt: skip
    assert container["command"][4:6] == ["--join", "10.0.0.1:4000"]


def test_each_size_of_nodes_gets_a_job_with_consecutive_indices(tmp_path: Path) -> None:
    _, *jobs = manifests(deployment(tmp_path, (4, 4, 8)))
    firsts = []
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        firsts += [e["value"] for e in container["env"] if e["name"] == "SCALEPROOF_FIRST"]
    assert firsts == ["0", "2"]


@pytest.mark.parametrize(
    ("kind", "model"),
    [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")],
)
def test_custom_kinds_are_valid_for_their_published_models(
    tmp_path: Path, kind: str, model: str
) -> None:
    reason = "kubeflow-trainer-api is missing"
    published = getattr(pytest.importorskip("kubeflow_trainer_api.models", reason=reason), model)
    made = manifests(deployment(tmp_path, kind=kind))[-1]
    assert made["kind"].lower() == kind
    assert published.from_dict(made).to_dict() == made  # unknown fields would get lost
    made["spec"]["replikas"] = 2
    assert published.from_dict(made).to_dict() != made
    text = json.dumps(made)
    assert "harness.training.agent.agent" in text and "secretKeyRef" in text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"image": ""}, "image is empty"),
        ({"kind": "pod"}, "'pod'"),
        ({"kind": "trainjob"}, "same number of ranks"),
    ],
)
def test_impossible_manifests_are_refused(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        manifests(deployment(tmp_path, (4, 8), **settings))


def test_the_token_is_in_no_manifest_and_no_command(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    token = (tmp_path / "token").read_text().strip()
    (command,) = engine.build().plan(deployment(tmp_path))
    assert token not in json.dumps([command.argv, dict(command.files), dict(command.env)])


def labels_of(body: dict[str, Any]) -> list[dict[str, str]]:
    """Return the labels of each pod that a cluster creates for a manifest."""
    jobset = {"jobset.sigs.k8s.io/jobset-name": body["metadata"]["name"]}
    if body["kind"] == "TrainJob":
        return [jobset] * body["spec"]["trainer"]["numNodes"]
    jobs = [body["spec"]] if body["kind"] == "Job" else []
    if body["kind"] == "JobSet":
        jobs = [job["template"]["spec"] for job in body["spec"]["replicatedJobs"]]
    more = jobset if body["kind"] == "JobSet" else {}
    return [
        {**more, **job["template"]["metadata"]["labels"]}
        for job in jobs
        for _ in range(job["completions"])
    ]


def group(name: str, version: str, kind: str) -> dict[str, Any]:
    """Return the discovery documents of a group with one kind."""
    resource = {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "verbs": ["create"]}
    at = {"groupVersion": f"{name}/{version}", "version": version}
    return {
        f"/apis/{name}": {
            "kind": "APIGroup",
            "name": name,
            "versions": [at],
            "preferredVersion": at,
        },
        f"/apis/{name}/{version}": {
            "kind": "APIResourceList",
            "groupVersion": f"{name}/{version}",
            "resources": [resource],
        },
    }


GROUPS = {
    **group("batch", "v1", "Job"),
    **group("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    **group("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
}
#: The documents that a client requests to discover the kinds.
DISCOVERY: dict[str, Any] = {
    **GROUPS,
    "/version": {"kind": "Info", "major": "1", "minor": "33"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [g for path, g in GROUPS.items() if path.count("/") == 2],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": f"{k.lower()}s", "kind": k, "namespaced": True, "verbs": ["create"]}
            for k in ("Pod", "Secret", "Service")
        ],
    },
}


class Stub(BaseHTTPRequestHandler):
    """An API server that records requests. ``breaks`` determines the answers to the next requests:
    a status, ``drop`` (executed, but not answered) or ``page`` (a proxy's web page).
    """

    seen: list[tuple[str, str, Any]]
    labels: list[dict[str, str]]  # of the pods of the created objects
    phase: str
    status: dict[str, Any]  # further fields of each pod's status
    leaving: bool
    refuse: bool
    taken: bool  # whether the name belongs to another run
    breaks: dict[str, list[Any]]  # by verb
    secrets: dict[str, Any]

    def _answer(self, document: Any, status: int = 200) -> None:
        queue = self.breaks.get(self.command, [])
        how = queue.pop(0) if queue and urlsplit(self.path).path not in DISCOVERY else None
        if how == "drop":
            return self.connection.close()
        raw = b"<html>sign in</html>" if how == "page" else json.dumps(document).encode()
        self.send_response(how if isinstance(how, int) else status)
        self.send_header("Content-Type", "text/html" if how == "page" else "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(("POST", self.path, body))
        if body["kind"] == "Secret":
            if self.taken:
                return self._answer({"kind": "Status", "reason": "AlreadyExists"}, 409)
            body["metadata"]["uid"] = "u-1"
            data = {k: base64.b64encode(v.encode()).decode() for k, v in body["stringData"].items()}
            self.secrets[body["metadata"]["name"]] = {**body, "data": data}
        self.labels.extend(labels_of(body))
        self._answer(body, 403 if self.refuse and body["kind"] == "Job" else 201)

    def do_DELETE(self) -> None:
        options = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        how = (self.breaks.get("DELETE") or [None])[0]
        type(self).seen.append(("DELETE", self.path, options))
        name = self.path.split("?")[0].rpartition("/")[2]
        if "/secrets/" in self.path and how is None:
            there = self.secrets.get(name)
            if there is None:
                return self._answer({"kind": "Status"}, 404)
            if options["preconditions"]["uid"] != there["metadata"]["uid"]:
                return self._answer({"kind": "Status"}, 409)
            del self.secrets[name]
            type(self).phase = ""  # the cluster deletes the owned objects
        self._answer({"kind": "Status"})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if (known := DISCOVERY.get(path)) is not None:
            return self._answer(known)
        if "/secrets/" in path:
            there = self.secrets.get(path.rpartition("/")[2])
            return self._answer(there or {"kind": "Status"}, 200 if there else 404)
        asked = parse_qs(urlsplit(self.path).query)["labelSelector"][0].split("=")
        more = {"deletionTimestamp": "2026-11-25T09:00:00Z"} if self.leaving else {}
        pods = [
            {
                "metadata": {"name": f"pod-{i}", **more},
                "status": {"phase": self.phase, **self.status},
            }
            for i, labels in enumerate(self.labels)
            if labels.get(asked[0]) == asked[1]
        ]
        self._answer({"kind": "PodList", "apiVersion": "v1", "items": pods if self.phase else []})

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def stub() -> Iterator[tuple[type[Stub], str]]:
    class Own(Stub):
        phase = "Pending"
        refuse = leaving = taken = False

    Own.seen, Own.labels, Own.status, Own.breaks, Own.secrets = [], [], {}, {}, {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Own, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "made"),
    [("job", ["Service", "Job"]), ("jobset", ["Service", "JobSet"]), ("trainjob", ["TrainJob"])],
)
def test_pods_are_created_polled_and_deleted(
    tmp_path: Path, stub: tuple[type[Stub], str], kind: str, made: list[str]
) -> None:
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    server, host = stub
    make_token(tmp_path / "token")
    pods = engine.Pods(deployment(tmp_path, host=host, kind=kind))
    assert [body["kind"] for _, _, body in server.seen] == ["Secret", *made]
    assert pods.poll() == (State.PENDING, "2 of 2 pods pending")
    server.phase = "Running"
    assert pods.poll()[0] is State.RUNNING
    server.phase = "Failed"
    state, message = pods.poll()
    assert state is State.ENDED and "pod-0" in message
    pods.stop()
    gone = [path.split("/")[-2] for verb, path, _ in server.seen if verb == "DELETE"]
    assert gone == [f"{word.lower()}s" for word in reversed(["Secret", *made])]
    pods.stop()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_refused_object_is_reported_and_nothing_is_left(
    tmp_path: Path, stub: tuple[type[Stub], str]
) -> None:
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    server, host = stub
    server.refuse = True
    make_token(tmp_path / "token")
    with pytest.raises(LaunchError, match="403"):
        engine.Pods(deployment(tmp_path, host=host))
    assert sum(verb == "DELETE" for verb, _, _ in server.seen) == 2


QUIET = (
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)


def quiet(test: Any) -> Any:
    for mark in QUIET:
        test = mark(test)
    return test


@pytest.fixture
def pods(tmp_path: Path, stub: tuple[type[Stub], str]) -> Iterator[engine.Pods]:
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    make_token(tmp_path / "token")
    made = engine.Pods(deployment(tmp_path, host=stub[1]))
    yield made
    made.stop()


@quiet
@pytest.mark.parametrize("how", [401, 403, 429, 500, 503, "drop", "page"])
def test_a_run_survives_a_cluster_that_does_not_answer(
    stub: tuple[type[Stub], str], pods: engine.Pods, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    server, _ = stub
    server.phase = "Running"
    assert pods.poll()[0] is State.RUNNING
    server.breaks["GET"] = [how] * 20  # the client retries by itself
    server.phase = "Failed"
    assert pods.poll() == (State.RUNNING, ""), "the last answer stays"
    server.breaks.clear()
    assert pods.poll() == (State.RUNNING, ""), "it is not asked at once again"
    monkeypatch.setattr(pods, "_asked_again_at", 0.0)
    assert pods.poll()[0] is State.ENDED


@quiet
@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_objects_created_before_a_lost_connection_are_deleted(
    tmp_path: Path, stub: tuple[type[Stub], str], dropped: int
) -> None:
    """The first, second or third object is created, but the answer is lost."""
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    server, host = stub
    server.breaks["POST"] = [None] * dropped + ["drop"]
    make_token(tmp_path / "token")
    with pytest.raises(LaunchError, match="does not answer"):
        engine.Pods(deployment(tmp_path, host=host))
    assert not server.secrets, "and what it owns goes with it"
    owners = [
        body["metadata"]["ownerReferences"][0]["uid"]
        for verb, _, body in server.seen
        if verb == "POST" and body["kind"] != "Secret"
    ]
    assert owners == ["u-1"] * dropped


@quiet
def test_ctrl_c_between_two_objects_leaves_none(
    tmp_path: Path, stub: tuple[type[Stub], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    server, host = stub
    make_token(tmp_path / "token")
    create = engine.Pods._create

    def interrupted(self: engine.Pods, manifest: dict[str, Any]) -> Any:
        if manifest["kind"] == "Job":
            raise KeyboardInterrupt
        return create(self, manifest)

    monkeypatch.setattr(engine.Pods, "_create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.Pods(deployment(tmp_path, host=host))
    assert not server.secrets


@quiet
def test_a_dropped_delete_is_repeated(stub: tuple[type[Stub], str], pods: engine.Pods) -> None:
    server, _ = stub
    server.breaks["DELETE"] = ["drop"] * 12
    pods.stop()
    assert not server.secrets


@quiet
def test_another_runs_objects_with_the_same_name_are_not_deleted(
    tmp_path: Path, stub: tuple[type[Stub], str]
) -> None:
    """The create is refused or not answered, and the existing Secret has another token."""
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    server, host = stub
    server.taken = True
    theirs = {
        "kind": "Secret", "apiVersion": "v1", "data": {"token": "dGhlaXJz"},
        "metadata": {"name": "scaleproof", "uid": "u-9"},
    }  # fmt: skip
    server.secrets["scaleproof"] = theirs
    make_token(tmp_path / "token")
    for how, message in ((None, "409"), ("drop", "does not answer")):
        server.breaks["POST"] = [how]
        with pytest.raises(LaunchError, match=message):
            engine.Pods(deployment(tmp_path, host=host))
        assert server.secrets == {"scaleproof": theirs}
    assert not any(verb == "DELETE" for verb, _, _ in server.seen)


@quiet
@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff",
                                                          "message": "no such image"}}}]},
            "ImagePullBackOff: no such image",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/4 nodes are available"}]},
            "Unschedulable: 0/4 nodes are available",
        ),
    ],
)  # fmt: skip
def test_pods_that_cannot_start_end_the_wait_with_their_reason(
    stub: tuple[type[Stub], str], pods: engine.Pods, status: dict[str, Any], why: str
) -> None:
    server, _ = stub
    server.status = status
    assert pods.poll() == (State.PENDING, f"2 of 2 pods pending: pod-0: {why}")
    assert pods._stuck_since is not None
    pods._stuck_since -= engine.SETTINGS["stuck_s"]  # type: ignore[operator]
    assert pods.poll() == (State.ENDED, f"2 of 2 pods pending: pod-0: {why}")


@quiet
def test_pods_of_an_earlier_run_are_ignored_and_deleted_pods_end_the_run(
    stub: tuple[type[Stub], str], pods: engine.Pods
) -> None:
    server, _ = stub
    server.phase = "Running"
    server.labels.insert(0, {**server.labels[0], engine.RUN: "another"})
    assert pods.poll()[0] is State.RUNNING
    server.leaving = True
    assert pods.poll() == (State.ENDED, "pod-1 is deleted: evicted, preempted, or by hand")


def test_pods_get_the_settings_of_a_site(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    asked = dict(
        service_account="trainer", image_pull_secrets=["regcred"], node_selector=["pool=h100"],
        tolerations=["nvidia.com/gpu=present:NoSchedule", "dedicated:NoExecute"],
        capabilities=["IPC_LOCK"], resources=["rdma/hca=1", "cpu=96"],
        labels=["kueue.x-k8s.io/queue-name=team"],
        annotations=["kueue.x-k8s.io/podset-required-topology=cloud.com/rack"],
    )  # fmt: skip
    _, job = manifests(deployment(tmp_path, **asked))
    validate.validate(job, VERSION, strict=True)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    template = job["spec"]["template"]
    assert "cloud.com/rack" in template["metadata"]["annotations"].values()
    pod = template["spec"]
    assert pod["serviceAccountName"] == "trainer" and pod["nodeSelector"] == {"pool": "h100"}
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    assert [t["operator"] for t in pod["tolerations"]] == ["Equal", "Exists"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    limits = container["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", "rdma/hca": "1", "cpu": "96"}


@pytest.mark.parametrize(
    ("name", "value"), [("tolerations", "gpu"), ("node_selector", "pool"), ("resources", "=1")]
)
def test_settings_of_pods_are_checked(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SpecError, match=f"{name}: '{value}'"):
        manifests(deployment(tmp_path, **{name: [value]}))
    with pytest.raises(SpecError, match="a TrainJob cannot set"):
        manifests(deployment(tmp_path, kind="trainjob", **{name: [value]}))


def test_without_a_cluster_there_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubernetes", reason="the kubernetes client is missing")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    make_token(tmp_path / "token")
    with pytest.raises(LaunchError, match="no cluster is configured"):
        engine.Pods(deployment(tmp_path))
    with pytest.raises(LaunchError, match="the cluster does not answer"):
        engine.Pods(deployment(tmp_path, host="http://127.0.0.1:9"))
