"""Send a run's state to an OpenTelemetry collector, as metrics and spans, while the run goes on.

    Progress -> gauges, one span per launch -> threads of the SDK -> OTLP over HTTP -> a collector

A run never waits for a collector. Spans are queued, and a full queue drops its oldest span. Gauges
are read when they are sent. The end of a run waits at most ``FLUSH_S`` seconds, and then reports
telemetry that was lost.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from harness.analysis.results import Result, results
from harness.base.errors import Exit, ScaleproofError, SpecError
from harness.cases import CaseSpec
from harness.measure.progress import Beside, Looking, Moment, Progress, Waiting
from harness.record import LaunchRecord, RunRecord
from harness.record.record import stand_ins

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from harness.measure.run import Run

WATCH = "OpenTelemetry"
PACKAGE = "opentelemetry-exporter-otlp-proto-http"
#: Time limits in seconds: EVERY_S between two exports of the gauges, REQUEST_S for one request, and
#: FLUSH_S for sending the rest at the end of a run.
EVERY_S = 5.0
REQUEST_S = 3.0
FLUSH_S = 5.0
#: The largest number of spans in the queue. If it is full, a new span displaces the oldest one.
MOST_SPANS = 2048
#: The unit (UCUM code) and the description of each gauge.
GAUGES: Mapping[str, tuple[str, str]] = {
    "scaleproof.run.running": ("1", "1 while the run is measured, 0 after it ended or failed."),
    "scaleproof.run.exit": ("1", "Exit status of the run, from its verdicts or from its error."),
    "scaleproof.run.elapsed": ("s", "Seconds since the run began."),
    "scaleproof.run.left": ("s", "Seconds that the run is expected to continue."),
    "scaleproof.run.step": ("1", "The current step of the current launch."),
    "scaleproof.run.notes": ("1", "The number of notes so far."),
    "scaleproof.run.launches": ("1", "Launches that ended, by purpose and status."),
    "scaleproof.agents": ("1", "Agents that are ready while the run waits for more of them."),
    "scaleproof.throughput": ("1/s", "Samples per second of the latest timed launch of a case."),
    "scaleproof.step.mean": ("s", "Mean step time in the latest timed launch of a case."),
    "scaleproof.verdict.value": ("1", "The judged value of a verdict, in the unit of its metric."),
    "scaleproof.verdict.low": ("1", "The lower end of the 95 % interval of a verdict."),
    "scaleproof.verdict.high": ("1", "The upper end of the 95 % interval of a verdict."),
    "scaleproof.verdicts": ("1", "The number of verdicts with each status."),
}

Labels = tuple[tuple[str, str | bool], ...]


def watch(inner: Progress, address: str) -> Progress:
    """Return a progress display that also sends everything to a collector.

    It shows everything on the display ``inner``. Raise SpecError if ``address`` is not an HTTP
    address, or if the SDK is not installed.
    """
    if not address.startswith(("http://", "https://")):
        raise SpecError(
            f"--heartbeat {address}: not an address of an OTLP collector",
            expected="OTLP over HTTP",
            fix="--heartbeat http://localhost:4318",
        )
    if importlib.util.find_spec("opentelemetry") is None or not _exporter():
        raise SpecError(
            f"--heartbeat {address} needs the package {PACKAGE}, which is not installed",
            expected="opentelemetry-sdk and its OTLP exporter in this environment",
            fix="pip install 'scaleproof[otlp]'",
        )
    return Telemetry(inner, address.rstrip("/"))


def _exporter() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class Telemetry(Beside):
    """A progress display that stores the state of a run. Threads of the SDK read and send it."""

    def __init__(self, inner: Progress, address: str) -> None:
        super().__init__(inner)
        self._address = address
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in GAUGES}
        self._lost = _Lost()
        self._run: Run | None = None
        self._tracer_provider: TracerProvider | None = None
        self._meter_provider: MeterProvider | None = None
        self._root: Span | None = None

    def begin(self, run: Run) -> None:
        """Start the threads that send the state. They connect to the collector later."""
        super().begin(run)
        from opentelemetry.sdk.resources import Resource

        self._run = run
        resource = Resource.create(
            {
                "service.name": "scaleproof",
                "service.version": importlib.metadata.version("scaleproof"),
                "service.instance.id": run.name,
            }
        )
        self._lost.listen()
        self._tracer_provider = _tracing(self._address, resource)
        self._meter_provider = _metering(self._address, resource, self._observed)
        tracer = self._tracer_provider.get_tracer("scaleproof")
        self._root = tracer.start_span(f"run {run.name}", attributes=_plain(self._where()))
        self._set("scaleproof.run.running", 1.0)

    def _where(self) -> Labels:
        assert self._run is not None, "begun"
        return (("run", self._run.name), ("machine", self._run.machine.hardware_class))

    def _set(self, name: str, value: float | None, *labels: tuple[str, str | bool]) -> None:
        if value is not None:
            with self._lock:
                self._values[name][(*self._where(), *labels)] = float(value)

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                values = list(self._values[name].items())
            return (Observation(value, _plain(labels)) for labels, value in values)

        return observe

    def show(self, moment: Moment | Waiting | Looking) -> None:
        """Store the figures of a moment. The threads send the latest ones."""
        super().show(moment)
        if isinstance(moment, Waiting):
            self._set("scaleproof.agents", moment.here)
            return
        self._set("scaleproof.run.elapsed", moment.elapsed_s)
        self._set("scaleproof.run.left", moment.left_s)
        if isinstance(moment, Moment):
            self._set("scaleproof.run.step", moment.step)

    def note(self, text: str) -> None:
        super().note(text)
        if self._run is not None:
            with self._lock:
                notes = self._values["scaleproof.run.notes"]
                notes[self._where()] = notes.get(self._where(), 0.0) + 1.0

    def launched(self, case: CaseSpec, launch: LaunchRecord) -> None:
        """Record a span for the launch, and the figures of a timed launch."""
        super().launched(case, launch)
        assert self._run is not None and self._tracer_provider is not None
        stand_in = bool(stand_ins(case, self._run.nodes or (self._run.machine,) * len(case.nodes)))
        about = (("case", case.id), ("stand_in", stand_in))
        status = "ok" if launch.usable else "wrong" if launch.wrong else str(launch.status)
        counted = (("purpose", str(launch.purpose)), ("status", status))
        with self._lock:
            launches = self._values["scaleproof.run.launches"]
            key = (*self._where(), *counted)
            launches[key] = launches.get(key, 0.0) + 1.0
        if launch.usable and launch.block >= 0:
            self._set("scaleproof.throughput", launch.throughput, *about)
            step_s = None if launch.steps is None else launch.steps.mean_s
            self._set("scaleproof.step.mean", step_s, *about)
        self._span(launch, (*self._where(), *about, *counted))

    def _span(self, launch: LaunchRecord, labels: Labels) -> None:
        from opentelemetry import trace

        assert self._tracer_provider is not None and self._root is not None
        began_ns = int(datetime.fromisoformat(launch.started_at).timestamp() * 1e9)
        figures = {
            "launch": launch.launch,
            "block": launch.block,
            "turn": launch.turn,
            "throughput": launch.throughput,
            "step_mean_s": None if launch.steps is None else launch.steps.mean_s,
            "foreign_load": launch.foreign_load,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        span = self._tracer_provider.get_tracer("scaleproof").start_span(
            f"{launch.purpose} {dict(labels)['case']}",
            context=trace.set_span_in_context(self._root),
            start_time=began_ns,
            attributes=_plain(labels)
            | {f"scaleproof.{key}": value for key, value in known.items()},
        )
        if not launch.usable:
            why = launch.wrong[0] if launch.wrong else launch.cause.message if launch.cause else ""
            span.set_status(trace.StatusCode.ERROR, why)
        span.end(began_ns + int(launch.wall_s * 1e9))

    def ended(self, record: RunRecord) -> None:
        """Send the results of the run, their counts, and its exit status."""
        super().ended(record)
        if self._root is None:
            return  # The run has failed before, or its record is written again.
        every = results(record)
        for result in every:
            self._result(result)
        counts = Counter(result.counts for result in every)
        for status, count in counts.items():
            self._set("scaleproof.verdicts", count, ("status", str(status)))
        self._set("scaleproof.run.elapsed", record.elapsed_s)
        self._end(record.exit_status if record.complete else Exit.INTERRUPTED, "")

    def _result(self, result: Result) -> None:
        labels = (
            ("case", result.case),
            ("stand_in", result.stand_in),
            ("metric", result.metric),
            ("against", result.against),
            ("rule", result.rule or ""),
            ("status", str(result.counts)),
        )
        for name in ("value", "low", "high"):
            self._set(f"scaleproof.verdict.{name}", getattr(result, name), *labels)

    def broke(self, error: BaseException) -> None:
        """Send the exit status for the error that ended the run."""
        super().broke(error)
        status = Exit.INTERNAL
        if isinstance(error, ScaleproofError):
            status = error.exit
        elif isinstance(error, KeyboardInterrupt):
            status = Exit.INTERRUPTED
        if self._root is not None:
            self._end(status, str(error) or type(error).__name__)

    def _end(self, status: Exit, why: str) -> None:
        from opentelemetry import trace

        assert self._root is not None and self._run is not None
        self._set("scaleproof.run.running", 0.0)
        self._set("scaleproof.run.left", 0.0)
        self._set("scaleproof.run.exit", float(status))
        self._root.set_attribute("scaleproof.exit", int(status))
        if why:
            self._root.set_status(trace.StatusCode.ERROR, why.splitlines()[0])
        self._root.end()
        self._root = None
        sending = threading.Thread(target=self._send_rest, daemon=True)
        sending.start()
        sending.join(FLUSH_S)
        if sending.is_alive():
            self._lost.told.append(f"the collector did not answer within {FLUSH_S:g} s")
        if self._lost.told:
            self.note(f"{self._address} did not accept all telemetry: {self._lost.told[-1]}")

    def _send_rest(self) -> None:
        """Send the rest of the telemetry, gauges first, because the exit status matters most."""
        assert self._tracer_provider is not None and self._meter_provider is not None
        self._meter_provider.shutdown()
        self._tracer_provider.shutdown()


def _plain(labels: Labels) -> dict[str, Any]:
    return {f"scaleproof.{name}": value for name, value in labels}


def _tracing(address: str, resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{address}/v1/traces", timeout=REQUEST_S)
    queue = BatchSpanProcessor(
        exporter, max_queue_size=MOST_SPANS, max_export_batch_size=min(512, MOST_SPANS)
    )
    provider.add_span_processor(queue)
    return provider


def _metering(
    address: str,
    resource: Resource,
    observed: Callable[[str], Callable[[CallbackOptions], Iterator[Observation]]],
) -> MeterProvider:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(endpoint=f"{address}/v1/metrics", timeout=REQUEST_S)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_S * 1e3)
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter("scaleproof")
    for name, (unit, about) in GAUGES.items():
        meter.create_observable_gauge(name, [observed(name)], unit=unit, description=about)
    return provider


class _Lost(logging.Handler):
    """A log handler that stores the SDK's messages about lost telemetry and prints none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def listen(self) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or "dropping" in text:
            self.told.append(text.splitlines()[0][:200])
