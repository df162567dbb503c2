"""A strict simulation of a Kubernetes API server for real clients, without a cluster.

Objects are validated by the published schemas of a version. A second create is 409, a change of an
old resourceVersion is 409, and a watch from before the remembered events is 410. Deletion waits for
finalizers and also deletes owned objects. ``controllers`` creates pods, and processes of pods.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSION = "1.33"
#: Number of remembered events; a watch from before these is 410.
REMEMBERED = 200
Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object. ``model`` names a published model, for kinds without a schema."""

    group: str  # with its version, as in apiVersion
    name: str
    plural: str
    namespaced: bool = True
    model: str = ""

    @property
    def path(self) -> str:
        return f"/api/{self.group}" if "/" not in self.group else f"/apis/{self.group}"


KINDS = (
    Kind("v1", "Namespace", "namespaces", namespaced=False),
    Kind("v1", "Pod", "pods"),
    Kind("v1", "Secret", "secrets"),
    Kind("v1", "Service", "services"),
    Kind("batch/v1", "Job", "jobs"),
    Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", model="JobsetV1alpha2JobSet"),
    Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", model="TrainerV1alpha1TrainJob"),
    Kind(
        "trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes",
        namespaced=False, model="TrainerV1alpha1ClusterTrainingRuntime",
    ),
)  # fmt: skip
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Refused(Exception):
    """An error answer of the server: a status and its reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check(kind: Kind, body: Object) -> None:
    """Raise Refused unless the published schema of the kind allows exactly these fields."""
    if (body.get("apiVersion"), body.get("kind")) != (kind.group, kind.name):
        raise Refused(400, "BadRequest", f"{body.get('kind')} is sent to {kind.plural}")
    metadata = body.get("metadata", {})
    if not _NAME.fullmatch(metadata.get("name", "")):
        raise Refused(422, "Invalid", f"metadata.name {metadata.get('name')!r}")
    for key, value in metadata.get("labels", {}).items():
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            raise Refused(422, "Invalid", f"metadata.labels {key}={value!r}")
    plain = {k: v for k, v in body.items() if k != "status"}
    if kind.model:
        from kubeflow_trainer_api import models  # this import takes seconds

        published = getattr(models, kind.model)
        try:
            same = published.from_dict(copy.deepcopy(plain)).to_dict()
        except ValueError as error:
            raise Refused(422, "Invalid", str(error)) from None
        lost = set(_leaves(plain)) - set(_leaves(json.loads(json.dumps(same, default=str))))
        lost = {path for path in lost if not path.startswith(".metadata")}
        if lost:
            raise Refused(400, "BadRequest", f"strict decoding error: unknown field {min(lost)!r}")
        return
    try:
        kubernetes_validate.validate(plain, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refused(422, "Invalid", f"{error.message} at {list(error.path)}") from None


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path


class Store:
    """All objects and their events; ``changed`` wakes waiting threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[tuple[str, str, str], Object] = {}  # kind, namespace, name
        self.events: list[tuple[int, str, str, Object]] = []
        self.compacted = 0
        self._versions = itertools.count(1)
        self.version = 0

    def _note(self, what: str, kind: str, thing: Object) -> None:
        self.version = next(self._versions)
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, what, kind, copy.deepcopy(thing)))
        if len(self.events) > REMEMBERED:
            self.compacted = self.events[-REMEMBERED - 1][0]
            self.events = self.events[-REMEMBERED:]
        self.changed.notify_all()

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        with self.changed:
            check(kind, body)
            metadata = body["metadata"]
            if kind.namespaced and metadata.setdefault("namespace", namespace) != namespace:
                raise Refused(400, "BadRequest", "the namespace of the object is not the request's")
            if kind.namespaced and ("Namespace", "", namespace) not in self.objects:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            if metadata.get("resourceVersion"):
                raise Refused(400, "BadRequest", "resourceVersion should not be set on objects")
            place = (kind.name, namespace if kind.namespaced else "", metadata["name"])
            if place in self.objects:
                raise Refused(409, "AlreadyExists", f'{kind.plural} "{place[2]}" already exists')
            for owner in metadata.get("ownerReferences", []):
                if {"apiVersion", "kind", "name", "uid"} - owner.keys():
                    raise Refused(422, "Invalid", "metadata.ownerReferences: a field is required")
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            if kind.name == "Secret":
                given = body.pop("stringData", {})
                made = {k: base64.b64encode(v.encode()).decode() for k, v in given.items()}
                body["data"] = {**body.get("data", {}), **made}
            self.objects[place] = body
            self._note("ADDED", kind.name, body)
            return copy.deepcopy(body)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        with self.changed:
            if (there := self.objects.get((kind, namespace, name))) is None:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found')
            return copy.deepcopy(there)

    def list(self, kind: str, namespace: str | None, chosen: Callable[[Object], bool]) -> Object:
        with self.changed:
            items = [
                copy.deepcopy(thing)
                for (name, where, _), thing in self.objects.items()
                if name == kind and namespace in (None, where) and chosen(thing)
            ]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def update(self, kind: str, body: Object) -> Object:
        """Update an object as a PUT does; its resourceVersion must be the current one."""
        metadata = body["metadata"]
        with self.changed:
            place = (kind, metadata.get("namespace", ""), metadata["name"])
            there = self.objects.get(place)
            if there is None or there["metadata"]["uid"] != metadata.get("uid"):
                raise Refused(404, "NotFound", f'{kind} "{place[2]}" not found')
            if metadata.get("resourceVersion") != there["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            self.objects[place] = body
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
                self._remove(place)
            else:
                self._note("MODIFIED", kind, body)
            return copy.deepcopy(body)

    def change(self, kind: str, thing: Object, change: Callable[[Object], None]) -> None:
        """Change an object as a controller does: read, change and put, again after a conflict."""
        metadata = thing["metadata"]
        while True:
            try:
                there = self.get(kind, metadata.get("namespace", ""), metadata["name"])
                change(there)
                self.update(kind, there)
                return
            except Refused as error:
                if error.status == 404:
                    return

    def delete(self, kind: str, namespace: str, name: str, options: Object) -> Object:
        with self.changed:
            there = self.objects.get((kind, namespace, name))
            if there is None:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found')
            asked = options.get("preconditions", {}).get("uid")
            if asked and asked != there["metadata"]["uid"]:
                raise Refused(409, "Conflict", "the UID in the precondition is another")
            policy = options.get("propagationPolicy", "Background")
            if policy not in ("Background", "Foreground", "Orphan"):
                raise Refused(422, "Invalid", f"propagationPolicy {policy!r}")
            if policy == "Orphan":
                self._disown(there["metadata"]["uid"])
            there["metadata"].setdefault("deletionTimestamp", now())
            if there["metadata"].get("finalizers"):
                self._note("MODIFIED", kind, there)
            else:
                self._remove((kind, namespace, name))
            return copy.deepcopy(there)

    def _remove(self, place: tuple[str, str, str]) -> None:
        thing = self.objects.pop(place)
        self._note("DELETED", place[0], thing)
        owners = {thing["metadata"]["uid"] for thing in self.objects.values()}
        for (kind, namespace, name), other in list(self.objects.items()):  # delete owned objects
            uids = [owner["uid"] for owner in other["metadata"].get("ownerReferences", [])]
            if uids and not owners.intersection(uids) and (kind, namespace, name) in self.objects:
                self.delete(kind, namespace, name, {})

    def _disown(self, uid: str) -> None:
        for thing in self.objects.values():
            left = [o for o in thing["metadata"].get("ownerReferences", []) if o["uid"] != uid]
            thing["metadata"]["ownerReferences"] = left


def selector(text: str) -> Callable[[Object], bool]:
    """Parse a label selector of equalities."""
    wanted = [part.replace("==", "=").partition("=") for part in text.split(",") if part]
    if any(not key or not equals or "!" in key for key, equals, _ in wanted):
        raise Refused(400, "BadRequest", f"unable to parse selector {text!r}")
    return lambda thing: all(
        thing["metadata"].get("labels", {}).get(key) == value for key, _, value in wanted
    )


def discovery() -> dict[str, Object]:
    """Return the documents that a client requests to discover the kinds."""
    out: dict[str, Object] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups = []
    for path, kinds in itertools.groupby(KINDS, lambda kind: kind.path):
        known = list(kinds)
        verbs = ["create", "delete", "get", "list", "update", "watch"]
        out[path] = {
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": known[0].group,
            "resources": [
                {"name": k.plural, "singularName": k.name.lower(), "kind": k.name,
                 "namespaced": k.namespaced, "verbs": verbs}
                for k in known
            ],
        }  # fmt: skip
        name, slash, version = known[0].group.partition("/")
        if slash:
            at = {"groupVersion": known[0].group, "version": version}
            group = {"name": name, "versions": [at], "preferredVersion": at}
            out[f"/apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **group}
            groups.append(group)
    out["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return out


DISCOVERY = discovery()
_PATHS = {(kind.path, kind.plural): kind for kind in KINDS}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def _answer(self, document: Object, status: int = 200) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _place(self) -> tuple[Kind, str | None, str]:
        """Return (kind, namespace, name) of the request's path."""
        match = re.fullmatch(
            r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?",
            urlsplit(self.path).path,
        )
        kind = _PATHS.get((match[1], match[3])) if match else None
        if match is None or kind is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return kind, match[2] if kind.namespaced else "", match[4] or ""

    def _do(self, act: Callable[[Kind, str | None, str], None]) -> None:
        try:
            act(*self._place())
        except Refused as error:
            status = {
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": error.message, "reason": error.reason, "code": error.status,
            }  # fmt: skip
            self._answer(status, error.status)

    def _body(self) -> Object:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if raw and "json" not in self.headers.get("Content-Type", ""):
            raise Refused(415, "UnsupportedMediaType", "JSON is wanted")
        read: Object = json.loads(raw or b"{}")
        return read

    def do_POST(self) -> None:
        body = self._body()
        self._do(lambda k, ns, _: self._answer(self.store.create(k, ns or "default", body), 201))

    def do_PUT(self) -> None:
        body = self._body()
        self._do(lambda k, *_: self._answer(self.store.update(k.name, body)))

    def do_DELETE(self) -> None:
        body = self._body()
        self._do(lambda k, ns, name: self._answer(self.store.delete(k.name, ns or "", name, body)))

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in DISCOVERY:
            return self._answer(DISCOVERY[path])
        self._do(self._get)

    def _get(self, kind: Kind, namespace: str | None, name: str) -> None:
        if name:
            return self._answer(self.store.get(kind.name, namespace or "", name))
        asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
        chosen = selector(asked.get("labelSelector", ""))
        if asked.get("watch") in ("1", "true"):
            return self._watch(kind, namespace, chosen, int(asked.get("resourceVersion") or 0))
        listed = self.store.list(kind.name, namespace, chosen)
        self._answer({"kind": f"{kind.name}List", "apiVersion": kind.group, **listed})

    def _watch(
        self, kind: Kind, namespace: str | None, chosen: Callable[[Object], bool], since: int
    ) -> None:
        """Send every event after a version until the client disconnects."""
        if since < self.store.compacted:
            raise Refused(410, "Expired", f"too old resource version: {since}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.close_connection = True
        self.end_headers()
        seen = since
        while not getattr(self.server, "over", False):
            with self.store.changed:
                fresh = [event for event in self.store.events if event[0] > seen]
                if not fresh:
                    self.store.changed.wait(0.5)
            for version, what, name, thing in fresh:
                seen = version
                where = thing["metadata"].get("namespace", "")
                if name == kind.name and namespace in (None, where) and chosen(thing):
                    line = json.dumps({"type": what, "object": thing}).encode() + b"\n"
                    try:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                        self.wfile.flush()
                    except OSError:
                        return

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    over = False


@contextmanager
def serving() -> Iterator[tuple[Store, str]]:
    """Yield the store of a running server with the default namespace, and its address."""
    store = Store()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    store.create(KINDS[0], "", namespace)
    server = _Server(("127.0.0.1", 0), type("Serving", (Handler,), {"store": store}))
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.over = True
        server.shutdown()
        thread.join()
        server.server_close()
