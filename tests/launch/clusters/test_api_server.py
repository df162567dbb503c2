"""The simulated API server behaves like a real one for kubectl and the Python client."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Device
from harness.launch.engine import Deployment, State
from harness.launch.engines import kubernetes as engine
from harness.launch.wire.channel import make_token

for needed in ("kubernetes", "kubernetes_validate", "kubeflow_trainer_api"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip("pip install 'scaleproof[test]'", allow_module_level=True)
api_server = importlib.import_module("tests.launch.clusters.api_server")
controllers = importlib.import_module("tests.launch.clusters.controllers")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield a simulated server and the real client."""
    import kubernetes

    with api_server.serving() as (store, host):
        client = kubernetes.client.ApiClient(kubernetes.client.Configuration(host=host))
        notes = str(tmp_path / "discovery.json")
        yield store, kubernetes.dynamic.DynamicClient(client, cache_file=notes)


def status_of(call: Any) -> int:
    import kubernetes

    with pytest.raises(kubernetes.client.ApiException) as caught:
        call()
    return int(caught.value.status)


def test_creates_and_changes_are_refused_as_by_a_real_server(
    here: tuple[Any, Any],
) -> None:
    _, api = here
    secrets = api.resources.get(api_version="v1", kind="Secret")
    made = secrets.create(body=SECRET, namespace="default")
    assert status_of(lambda: secrets.create(body=SECRET, namespace="default")) == 409
    assert status_of(lambda: secrets.create(body=SECRET, namespace="nowhere")) == 404
    other = {**SECRET, "metadata": {"name": "Upper"}}
    assert status_of(lambda: secrets.create(body=other, namespace="default")) == 422
    typo = {**SECRET, "metadata": {"name": "t"}, "stringdata": {}}
    assert status_of(lambda: secrets.create(body=typo, namespace="default")) == 422
    fresh = made.to_dict()
    fresh["data"] = {"a": "Yg=="}
    secrets.replace(body=fresh, namespace="default")
    assert status_of(lambda: secrets.replace(body=fresh, namespace="default")) == 409, "it is old"
    wrong = {"preconditions": {"uid": "another"}}
    assert status_of(lambda: secrets.delete(name="s", namespace="default", body=wrong)) == 409


def test_owned_objects_are_deleted_once_they_have_no_finalizer(
    here: tuple[Any, Any],
) -> None:
    _, api = here
    secrets = api.resources.get(api_version="v1", kind="Secret")
    owner = secrets.create(body=SECRET, namespace="default").metadata
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": owner.uid}
    about = {"name": "held", "ownerReferences": [reference], "finalizers": ["a.b/c"]}
    secrets.create(body={**SECRET, "metadata": about}, namespace="default")
    secrets.delete(name="s", namespace="default")
    held = secrets.get(name="held", namespace="default").to_dict()
    assert held["metadata"]["deletionTimestamp"]
    held["metadata"]["finalizers"] = []
    secrets.replace(body=held, namespace="default")
    assert status_of(lambda: secrets.get(name="held", namespace="default")) == 404


def test_a_watch_sends_later_events_and_is_410_if_it_begins_too_early(
    here: tuple[Any, Any],
) -> None:
    store, api = here
    secrets = api.resources.get(api_version="v1", kind="Secret")
    secrets.create(body=SECRET, namespace="default")
    since = secrets.get(namespace="default").metadata.resourceVersion
    secrets.create(body={**SECRET, "metadata": {"name": "later"}}, namespace="default")
    seen = next(iter(secrets.watch(namespace="default", resource_version=since, timeout=5)))
    assert (seen["type"], seen["raw_object"]["metadata"]["name"]) == ("ADDED", "later")
    later = store.get("Secret", "default", "later")
    for _ in range(api_server.REMEMBERED + 1):
        later = store.update("Secret", later)
    old = {"watch": "true", "resourceVersion": since}  # the client's own watch would begin anew
    path = "/api/v1/namespaces/default/secrets"
    assert status_of(lambda: api.request("GET", path, query_params=[*old.items()])) == 410


def deployment(folder: Path, host: str, **settings: Any) -> Deployment:
    asked = {**engine.SETTINGS, "image": "registry/scaleproof:1", "host": host, **settings}
    return Deployment(
        nodes=(1, 1), device=Device.CPU, join="127.0.0.1:9", token_file=folder / "token",
        folder=folder, python=sys.executable, settings=asked,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_queue_that_does_not_admit_leaves_a_run_pending(tmp_path: Path, kind: str) -> None:
    """With Kueue's label, no pod starts until the queue admits the job."""
    make_token(tmp_path / "token")
    labels = ["kueue.x-k8s.io/queue-name=team"]
    with controllers.cluster() as cluster:
        cluster.admits = False
        pods = engine.Pods(deployment(tmp_path, cluster.host, kind=kind, labels=labels))
        assert pods.poll() == (State.PENDING, "0 of 0 pods pending")
        cluster.admits = True
        deadline = time.monotonic() + 60
        while pods.poll()[0] is State.PENDING:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        pods.stop()
        assert not cluster.store.list("Pod", None, api_server.selector(""))["items"]
        kinds = {kind for kind, *_ in cluster.store.objects}
        assert kinds == {"Namespace", "ClusterTrainingRuntime"}, "all that was made is gone"


@pytest.mark.full
def test_kubectl_accepts_the_manifests_and_ends_a_run_by_its_secret(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    make_token(tmp_path / "token")
    with controllers.cluster() as cluster:

        def kubectl(*words: str) -> str:
            done = subprocess.run(
                ["kubectl", f"--server={cluster.host}", f"--cache-dir={tmp_path}", *words],
                capture_output=True, text=True, check=False, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        asked = deployment(tmp_path, cluster.host)
        ((path, text),) = engine.build().plan(asked)[0].files.items()
        Path(path).write_text(text)
        assert "job.batch/scaleproof created" in kubectl("create", "--validate=false", "-f", path)
        kubectl("delete", "job/scaleproof", "service/scaleproof", "--wait=false")
        pods = engine.Pods(asked)
        listed = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
        assert all(pod["kind"] == "Pod" for pod in listed)
        kubectl("delete", "secret", "scaleproof", "--wait=false")
        deadline = time.monotonic() + 30
        while json.loads(kubectl("get", "pods,jobs,services", "-o", "json"))["items"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        pods.stop()
