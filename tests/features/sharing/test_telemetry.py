"""Telemetry sent by the real SDK over HTTP to a receiver that decodes the real protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import LaunchError, SpecError
from harness.interface.cli.main import main
from harness.interface.report.heartbeat import watched
from harness.measure.progress import Progress
from harness.record import RunRecord
from harness.record.outcome import exit_status
from harness.record.store import load

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from harness.features.sharing import telemetry


class Collector:
    """The received spans and gauges; requests are answered while ``answers`` is set."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.gauges: dict[str, dict[frozenset[tuple[str, Any]], float]] = {}
        self.services: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            for of_resource in traces.resource_spans:
                for scope in of_resource.scope_spans:
                    self.spans += scope.spans
            return
        metrics = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        for resource in metrics.resource_metrics:
            self.services.add(labels(resource.resource.attributes)["service.name"])
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.gauge.data_points:
                        key = frozenset(labels(point.attributes).items())
                        self.gauges.setdefault(metric.name, {})[key] = point.as_double


def labels(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            taken.asked.set()
            taken.answers.wait()
            taken.take(self.path, body)
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
            except OSError:
                pass  # The client did not wait for the answer.

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    serving.start()
    taken.url = f"http://127.0.0.1:{server.server_port}"
    before = set(threading.enumerate())
    yield taken
    taken.answers.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)  # A thread that still retries would draw random numbers during other tests.
        assert not thread.is_alive(), thread.name
    server.shutdown()
    server.server_close()


class Notes(Progress):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def replayed(run: RunRecord, notes: Progress, url: str) -> Progress:
    """Report a recorded run as if it were being measured."""
    shown = watched(notes, url)
    shown.begin(SimpleNamespace(name=run.run, machine=run.machine, nodes=run.nodes))  # type: ignore[arg-type]
    cases = {a.case.hash: a.case for plan in run.plans for a in plan.arms}
    for launch in run.launches:
        if launch.case in cases:
            shown.launched(cases[launch.case], launch)
    return shown


def test_every_launch_is_a_span_and_every_verdict_a_gauge(
    sample_run: RunRecord, collector: Collector
) -> None:
    notes = Notes()
    replayed(sample_run, notes, collector.url).ended(sample_run)
    assert notes.told == [] and collector.services == {"scaleproof"}
    (root,) = [s for s in collector.spans if not s.parent_span_id]
    children = [s for s in collector.spans if s.parent_span_id]
    assert all(s.parent_span_id == root.span_id for s in children)
    by_name = {labels(s.attributes)["scaleproof.launch"]: s for s in children}
    launches = {x.launch: x for x in sample_run.launches if x.case}
    assert by_name.keys() == launches.keys()
    for name, span in by_name.items():
        lasted_ns = span.end_time_unix_nano - span.start_time_unix_nano
        assert lasted_ns == pytest.approx(launches[name].wall_s * 1e9, abs=2)
    values = collector.gauges["scaleproof.verdict.value"]
    assert sorted(values.values()) == sorted(
        v.value for v in sample_run.verdicts if v.value is not None
    )
    assert all({"scaleproof.stand_in", "scaleproof.status"} <= dict(k).keys() for k in values)
    (exit_,) = collector.gauges["scaleproof.run.exit"].values()
    assert exit_ == exit_status([v.counts for v in sample_run.verdicts])
    assert list(collector.gauges["scaleproof.run.running"].values()) == [0.0]


def test_a_failed_run_reports_its_error(sample_run: RunRecord, collector: Collector) -> None:
    shown = replayed(sample_run, Notes(), collector.url)
    shown.broke(LaunchError("node 3 is gone"))
    shown.ended(sample_run)  # The partial record is written later.
    assert list(collector.gauges["scaleproof.run.exit"].values()) == [11.0]
    (root,) = [s for s in collector.spans if not s.parent_span_id]
    assert root.status.message == "node 3 is gone"
    assert "scaleproof.verdict.value" not in collector.gauges, (
        "a failed run must not report verdicts"
    )


def test_a_slow_collector_does_not_delay_a_run_and_the_oldest_spans_are_dropped(
    sample_run: RunRecord, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector accepts a request and does not answer until after the run."""
    monkeypatch.setattr(telemetry, "FLUSH_S", 0.1)
    monkeypatch.setattr(telemetry, "REQUEST_S", 60.0)
    monkeypatch.setattr(telemetry, "MOST_SPANS", 4)
    collector.answers.clear()
    notes = Notes()
    shown = replayed(sample_run, notes, collector.url)
    assert collector.asked.wait(30), "the first spans must be sent"
    cases = {a.case.hash: a.case for plan in sample_run.plans for a in plan.arms}
    last = [x for x in sample_run.launches if x.case in cases]
    for launch in last:
        shown.launched(cases[launch.case], launch)
    provider = shown._tracer_provider  # type: ignore[attr-defined]
    (processor,) = provider._active_span_processor._span_processors
    waiting = [s.attributes["scaleproof.launch"] for s in processor._batch_processor._queue]
    assert waiting[::-1] == [x.launch for x in last[-4:]], "the newest spans must be kept"
    shown.ended(sample_run)
    assert not collector.answers.is_set() and collector.spans == []
    assert "did not accept all telemetry" in notes.told[-1]


@pytest.mark.parametrize(
    ("where", "expected"),
    [("grpc://collector:4317", "OTLP over HTTP"), ("nowhere/at/all.prom", "not a writable folder")],
)
def test_an_invalid_address_is_reported(where: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        watched(Progress(), where)


@pytest.mark.full
def test_a_real_run_is_reported_to_the_collector(collector: Collector, tmp_path: Path) -> None:
    """A user's run with one rank; the collector must get the data of the record."""
    words = ["run", "ddp/mlp-nano/weak", "--cpus", "1", "--no-fabric", "--no-timeline"]
    words += ["--heartbeat", collector.url, "--results", str(tmp_path)]
    status = main(words)
    (folder,) = (tmp_path / "runs").glob("*/*")
    run = load(folder)
    assert list(collector.gauges["scaleproof.run.exit"].values()) == [float(status)]
    launched = {labels(s.attributes).get("scaleproof.launch") for s in collector.spans}
    assert launched - {None} == {x.launch for x in run.launches}
    timed = [x for x in run.launches if x.block >= 0 and x.usable]
    latest = {x.case: x.throughput for x in timed}
    assert sorted(collector.gauges["scaleproof.throughput"].values()) == sorted(latest.values())  # type: ignore[type-var]
