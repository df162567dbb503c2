"""The status that is sent to a TrainJob's controller, tested by a server with real TLS."""

from __future__ import annotations

import json
import queue
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.wire import trainjob
from harness.launch.wire.messages import HowFar

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/bench/trainjobs/scaleproof/status"
LAUNCH = {"case": "ddp/decoder-nano/weak@2cpu", "launch": "3 of 8", "purpose": "timed"}
WITHIN_S = 30.0


@dataclass
class Controller:
    """A server that accepts a status as Kubeflow's controller does."""

    port: int = 0
    certificate: Path = Path()
    taken: queue.Queue[tuple[str, str, Any]] = field(default_factory=queue.Queue)
    refused: queue.Queue[OSError] = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}{PATH}"


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create (certificate, key) of ``localhost`` by openssl."""
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", paths[1], "-out", paths[0], "-subj", f"/CN={name}",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    made = Controller()
    made.certificate, key = certificate(tmp_path_factory.mktemp("tls"), "controller")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.taken.put((self.path, self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(HTTPServer):
        def get_request(self) -> Any:
            try:
                return super().get_request()
            except OSError as error:  # of a handshake
                made.refused.put(error)
                raise

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, key)
    with Server(("localhost", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def reporters() -> Iterator[Callable[[], trainjob.Reporter]]:
    """Yield a maker of reporters, whose processes have ended afterwards."""
    made: list[trainjob.Reporter] = []

    def make() -> trainjob.Reporter:
        made.append(trainjob.Reporter())
        return made[-1]

    yield make
    for reporter in made:
        reporter.close()


Reporters = Callable[[], trainjob.Reporter]


@pytest.fixture
def pod(controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the variables that Kubeflow gives a pod; return the file of its token."""
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv(trainjob.URL, controller.url)
    monkeypatch.setenv(trainjob.CERTIFICATE, str(controller.certificate))
    monkeypatch.setenv(trainjob.TOKEN, str(token))
    return token


def test_a_status_arrives_with_the_current_token(
    controller: Controller, pod: Path, reporters: Reporters
) -> None:
    for token in ("first", "second"):  # Kubernetes rotates it
        pod.write_text(f"{token}\n")
        reporters().tell(30.0, 90.0, LAUNCH)
        path, authorization, document = controller.taken.get(timeout=WITHIN_S)
        assert (path, authorization) == (PATH, f"Bearer {token}")
        status = document["trainerStatus"]
        assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (25, 90)
        assert {"name": "purpose", "value": "timed"} in status["metrics"]


def test_a_server_with_another_certificate_gets_no_token(
    controller: Controller,
    pod: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reporters: Reporters,
) -> None:
    other, _ = certificate(tmp_path, "other")
    monkeypatch.setenv(trainjob.CERTIFICATE, str(other))
    reporters().tell(1.0, 1.0, LAUNCH)
    assert isinstance(controller.refused.get(timeout=WITHIN_S), ssl.SSLError)
    assert controller.taken.empty()


def test_a_token_is_sent_over_https_only(monkeypatch: pytest.MonkeyPatch, pod: Path) -> None:
    monkeypatch.setenv(trainjob.URL, f"http://localhost{PATH}")
    with pytest.raises(ValueError, match="https address"):
        trainjob.send(b"{}")


def test_outside_of_kubeflow_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.delenv(trainjob.URL, raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    trainjob.Reporter().tell(1.0, 1.0, LAUNCH)


def test_statuses_are_rate_limited(
    pod: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch, reporters: Reporters
) -> None:
    started: list[object] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **b: started.append(a) or popen(*a, **b))
    reporter = reporters()
    for _ in range(3):
        reporter.tell(1.0, 1.0, LAUNCH)
    controller.taken.get(timeout=WITHIN_S)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("elapsed_s", "left_s", "percent", "seconds"),
    [
        (0.0, 0.0, None, None),
        (5.0, None, None, None),
        (100.0, 0.2, 99, 1),
        (0.0, 9e12, 0, 2**31 - 1),
    ],
)
def test_unknown_and_too_large_values_of_a_status(
    elapsed_s: float, left_s: float | None, percent: int | None, seconds: int | None
) -> None:
    status = trainjob.status(elapsed_s, left_s, {"case": "x" * 99, "none": ""}, 0.0)[
        "trainerStatus"
    ]
    assert status.get("progressPercentage") == percent
    assert status.get("estimatedRemainingSeconds") == seconds
    assert status["metrics"] == [{"name": "case", "value": "x" * 64}]
    assert status["lastUpdatedTime"] == "1970-01-01T00:00:00Z"


@pytest.mark.full  # an agent imports torch
def test_a_program_sends_its_status_through_the_first_agent(
    controller: Controller, pod: Path
) -> None:
    worlds = open_worlds(Catalogue().get("engines", "local"), Where())
    try:
        worlds.ready()
        worlds.tell(HowFar(elapsed_s=30.0, left_s=90.0, launch=LAUNCH))
        _, _, document = controller.taken.get(timeout=WITHIN_S)
    finally:
        worlds.close()
    assert document["trainerStatus"]["progressPercentage"] == 25


@pytest.mark.full  # importing Kubeflow's models takes seconds
def test_a_status_is_valid_for_the_published_model() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api")
    published = models.TrainerV1alpha1UpdateTrainJobStatusRequest
    document = trainjob.status(30.0, 90.0, LAUNCH, 1.0)
    read = published.from_dict(document).to_dict()
    assert json.loads(json.dumps(read, default=lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}")) == document
