"""Simulated controllers of a cluster: TrainJob -> JobSet -> Jobs -> pods -> processes.

Each implements only the documented behaviour that the engine relies on: an indexed Job with a
finalizer on its pods and without retries, a JobSet's Jobs and labels, a TrainJob's runtime, a queue
that admits jobs (Kueue's label suspends them), and a kubelet that starts containers as processes.
"""

from __future__ import annotations

import base64
import copy
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .api_server import KINDS, Object, Refused, Store, now, selector, serving

BY_NAME = {kind.name: kind for kind in KINDS}
TRACKED = "batch.kubernetes.io/job-tracking"
QUEUE = "kueue.x-k8s.io/queue-name"
REPOSITORY = Path(__file__).parents[3]
#: The relevant part of a TrainJob's runtime as shipped by Kubeflow.
RUNTIME: Object = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "template": {"spec": {"containers": [{"name": "node"}]}},
                            },
                        },
                    }
                ]
            }
        },
    },
}


def owned(owner: Object, name: str, kind: str, spec: Object, **metadata: Any) -> Object:
    """Return an object that is deleted with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    about = {"name": name, "namespace": owner["metadata"]["namespace"], **metadata}
    return {
        "apiVersion": BY_NAME[kind].group, "kind": kind,
        "metadata": {**about, "ownerReferences": [reference]}, "spec": spec,
    }  # fmt: skip


class Cluster:
    """The controllers and the kubelet. ``admits`` states whether the queue admits jobs."""

    def __init__(self, store: Store, host: str) -> None:
        self.store, self.host = store, host
        self.admits = True
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # by the uids of pods
        self.over = False
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Process all objects after each change, and regularly to notice ended processes."""
        while not self.over:
            try:
                for kind, look in (
                    ("TrainJob", self._train_job), ("JobSet", self._job_set), ("Job", self._job),
                    ("Pod", self._pod),
                ):  # fmt: skip
                    for thing in self.store.list(kind, None, selector(""))["items"]:
                        look(thing)
                self._orphans()
            except Refused as error:
                if error.status not in (404, 409):  # another writer was faster
                    self.errors.append(error)
            with self.store.changed:
                self.store.changed.wait(0.1)

    def _create(self, thing: Object) -> None:
        with suppress(Refused):
            namespace = thing["metadata"].get("namespace", "")
            self.store.create(BY_NAME[thing["kind"]], namespace, thing)

    def _queued(self, thing: Object) -> bool:
        return QUEUE in thing["metadata"].get("labels", {}) and not self.admits

    def _train_job(self, thing: Object) -> None:
        if thing["metadata"].get("deletionTimestamp") or self._queued(thing):
            return
        spec = thing["spec"]
        try:
            runtime = self.store.get("ClusterTrainingRuntime", "", spec["runtimeRef"]["name"])
        except Refused:
            return
        jobs = copy.deepcopy(runtime["spec"]["template"]["spec"]["replicatedJobs"])
        trainer = spec.get("trainer", {})
        nodes = trainer.get("numNodes", runtime["spec"]["mlPolicy"]["numNodes"])
        for job in jobs:
            job["replicas"] = 1
            inner = job["template"]["spec"]
            inner |= {
                "completions": nodes, "parallelism": nodes, "backoffLimit": 0,
                "completionMode": "Indexed",
            }  # fmt: skip
            inner["template"]["spec"]["restartPolicy"] = "Never"
            for container in inner["template"]["spec"]["containers"]:
                container |= {
                    k: trainer[k] for k in ("image", "command", "args", "env") if k in trainer
                }
                container.setdefault("env", []).append({"name": "PET_NNODES", "value": str(nodes)})
        metadata = thing["metadata"]
        self._create(owned(thing, metadata["name"], "JobSet", {"replicatedJobs": jobs}))

    def _job_set(self, thing: Object) -> None:
        if thing["metadata"].get("deletionTimestamp") or self._queued(thing):
            return
        name = thing["metadata"]["name"]
        for job in thing["spec"]["replicatedJobs"]:
            for i in range(job.get("replicas", 1)):
                labels = {
                    "jobset.sigs.k8s.io/jobset-name": name,
                    "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
                    "jobset.sigs.k8s.io/job-index": str(i),
                }
                spec = copy.deepcopy(job["template"]["spec"])
                template = spec["template"].setdefault("metadata", {})
                template["labels"] = {**template.get("labels", {}), **labels}
                made = owned(thing, f"{name}-{job['name']}-{i}", "Job", spec, labels=labels)
                self._create(made)

    def _job(self, thing: Object) -> None:
        metadata, spec = thing["metadata"], thing["spec"]
        uid = metadata["uid"]
        pods = [
            pod
            for pod in self.store.list("Pod", metadata["namespace"], selector(""))["items"]
            if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", []))
        ]
        for pod in pods:  # the Job has seen their end, so they may be removed
            gone = pod["metadata"].get("deletionTimestamp") and not self._alive(pod)
            if gone or metadata.get("deletionTimestamp"):
                self.store.change("Pod", pod, _untrack)
        conditions = thing.get("status", {}).get("conditions", [])
        if metadata.get("deletionTimestamp") or conditions or self._queued(thing):
            return
        assert spec.get("completionMode") == "Indexed" and spec.get("backoffLimit") == 0
        ended = [
            pod for pod in pods if pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
        ]
        failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
        if failed:
            self.store.change("Job", thing, lambda job: _conclude(job, "Failed"))
            for pod in pods:
                if pod not in ended:
                    name = pod["metadata"]["name"]
                    self.store.delete("Pod", metadata["namespace"], name, {})
            return
        if len(ended) == spec["completions"]:
            self.store.change("Job", thing, lambda job: _conclude(job, "Complete"))
            return
        here = {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods
        }
        for i in range(min(spec["completions"], spec["parallelism"])):
            if str(i) not in here:
                self._create(self._pod_of(thing, i))

    def _pod_of(self, job: Object, index: int) -> Object:
        template = copy.deepcopy(job["spec"]["template"])
        name = job["metadata"]["name"]
        labels = {
            **template.get("metadata", {}).get("labels", {}),
            "batch.kubernetes.io/job-name": name,
            "batch.kubernetes.io/job-completion-index": str(index),
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        }
        for container in template["spec"]["containers"]:
            # The index comes last, because no variable of the container may override it.
            container.setdefault("env", []).append(
                {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
            )
        template["spec"]["hostname"] = f"{name}-{index}"
        more = {"labels": labels, "finalizers": [TRACKED]}
        if annotations := template.get("metadata", {}).get("annotations"):
            more["annotations"] = annotations
        return owned(job, f"{name}-{index}-{os.urandom(3).hex()}", "Pod", template["spec"], **more)

    def _pod(self, pod: Object) -> None:
        """Act as the kubelet: start a container as a process, whose end is that of the pod."""
        metadata = pod["metadata"]
        process = self.processes.get(metadata["uid"])
        phase = pod.get("status", {}).get("phase", "Pending")
        if metadata.get("deletionTimestamp"):
            if process is not None and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                return
            if TRACKED in metadata.get("finalizers", []) and self._has_owner(pod):
                return  # its Job has to process it first
            self.store.change("Pod", pod, _untrack)
            return
        if process is None and phase == "Pending":
            self._start(pod)
        elif process is not None and phase == "Running" and process.poll() is not None:
            phase = "Failed" if process.returncode else "Succeeded"
            self.store.change("Pod", pod, lambda there: _tell(there, phase))

    def _start(self, pod: Object) -> None:
        (container,) = pod["spec"]["containers"]
        try:
            given = {e["name"]: self._value(pod, e) for e in container.get("env", [])}
        except Refused as error:
            waiting = {"reason": "CreateContainerConfigError", "message": error.message}
            if pod.get("status", {}).get("containerStatuses"):
                return
            self.store.change("Pod", pod, lambda there: _tell(there, "Pending", waiting=waiting))
            return
        # The variables of an image, without those of the process that started this cluster.
        image = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR")}
        image |= {k: v for k, v in os.environ.items() if k.startswith("TESTED_BY")}
        process = subprocess.Popen(
            [*container["command"], *container.get("args", [])],
            env={**image, "PYTHONPATH": str(REPOSITORY), **given},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.processes[pod["metadata"]["uid"]] = process
        self.store.change("Pod", pod, lambda there: _tell(there, "Running"))

    def _value(self, pod: Object, entry: Object) -> str:
        if "valueFrom" not in entry:
            return str(entry.get("value", ""))
        key = entry["valueFrom"]["secretKeyRef"]
        secret = self.store.get("Secret", pod["metadata"]["namespace"], key["name"])
        if key["key"] not in secret["data"]:
            raise Refused(
                404, "NotFound", f"couldn't find key {key['key']} in Secret {key['name']}"
            )
        return base64.b64decode(secret["data"][key["key"]]).decode()

    def _alive(self, pod: Object) -> bool:
        process = self.processes.get(pod["metadata"]["uid"])
        return process is not None and process.poll() is None

    def _has_owner(self, pod: Object) -> bool:
        owners = {o["uid"] for o in pod["metadata"].get("ownerReferences", [])}
        jobs = self.store.list("Job", pod["metadata"]["namespace"], selector(""))["items"]
        return any(job["metadata"]["uid"] in owners for job in jobs)

    def _orphans(self) -> None:
        """Kill processes of removed pods."""
        pods = self.store.list("Pod", None, selector(""))["items"]
        here = {pod["metadata"]["uid"] for pod in pods}
        for uid, process in self.processes.items():
            if uid not in here and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _untrack(pod: Object) -> None:
    left = [name for name in pod["metadata"].get("finalizers", []) if name != TRACKED]
    pod["metadata"]["finalizers"] = left


def _conclude(job: Object, what: str) -> None:
    job["status"] = {"conditions": [{"type": what, "status": "True", "lastTransitionTime": now()}]}


def _tell(pod: Object, phase: str, **container: Any) -> None:
    states = [{"name": "agent", "state": container}] if container else []
    pod["status"] = {"phase": phase, "containerStatuses": states}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a server, its controllers and one node; kill all its processes at the end."""
    with serving() as (store, host):
        store.create(BY_NAME["ClusterTrainingRuntime"], "", copy.deepcopy(RUNTIME))
        made = Cluster(store, host)
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.over = True
            thread.join()
            for process in made.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if made.errors:
            raise made.errors[0]


if __name__ == "__main__":  # a cluster for manual tests with kubectl
    with cluster() as here:
        sys.stdout.write(f"kubectl --server {here.host} get pods\n")
        signal.pause()
