"""Benchmarks for asv of the code that needs no torch; ``asv run`` measures them on any laptop.

Each benchmark measures an operation that a user waits for, on the shipped records.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import math
import random
import shutil
import tempfile
import time
from pathlib import Path

from harness.analysis.judging import verdicts
from harness.analysis.timeline.reader import read
from harness.analysis.verify import verify
from harness.base import programs
from harness.features.history import asv_results, scan
from harness.features.history.ingest import ingest
from harness.features.history.night import KeptFigure, Night, Value, keep, nights
from harness.features.history.trends import trends
from harness.interface.cli.main import main
from harness.interface.report.page import page
from harness.record.store import load

HERE = Path(__file__).parent
SAMPLE = HERE.parent / "results/samples/ddp-nano"


def year(results: Path, num_nights: int, num_cases: int) -> None:
    """Store nightly runs with two values for each case, with 1 % noise."""
    draw = random.Random(1)
    first = datetime.datetime(2025, 1, 1, 2, tzinfo=datetime.UTC)
    for i in range(num_nights):
        cases = {}
        for c in range(num_cases):
            launches = tuple(round(math.exp(draw.gauss(0, 0.01)), 6) for _ in range(8))
            values = {
                "step_time": Value(value=launches[0], launches=launches),
                "peak_memory": Value(value=1e8 + c),
            }
            name = f"ddp/decoder-tiny/weak@{c + 2}cpu"
            cases[name] = KeptFigure(hash=f"{c}", stand_in=False, values=values)
        when = first + datetime.timedelta(days=i)
        night = Night(
            run=f"{when:%Y%m%d-%H%M%S}-{i:04x}", started_at=when.isoformat(), hardware="bench",
            subject={"torch": "2.13.0"}, fingerprint={"hardware": "bench"}, cases=cases,
            machine={"cpu": "bench", "num_cpu": "2", "gpu": "none"},
        )  # fmt: skip
        keep(night, results)


class Core:
    """The cost of processing one measured run."""

    version = "1"
    timeout = 120

    def setup(self) -> None:
        self.run = load(SAMPLE)

    def time_load(self) -> None:
        load(SAMPLE)

    def time_judge(self) -> None:
        verdicts.verdicts(self.run)

    def time_verify(self) -> None:
        assert not verify(self.run, SAMPLE).differences

    def time_report(self) -> None:
        page.render(self.run)

    def time_list(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["run", "list"]) == 0

    def peakmem_report(self) -> None:
        page.render(self.run)


class Reader:
    """The cost of reading a trace of 20 MB in the format of torch.profiler."""

    version = "1"
    timeout = 120

    def setup(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.trace = self.folder / "trace.json"
        write = programs.load_module(str(HERE / "cost/reader.py")).write_trace
        self.events: int = write(self.trace, 20)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def time_read(self) -> None:
        read(self.trace)

    def peakmem_read(self) -> None:
        read(self.trace)

    def track_read_million_events(self) -> float:
        began = time.perf_counter()
        read(self.trace)
        return (time.perf_counter() - began) / self.events * 1e6

    track_read_million_events.unit = "seconds"  # type: ignore[attr-defined]


class History:
    """The cost of a history by its number of nightly runs, with 15 cases of two values each."""

    version = "1"
    timeout = 300
    params = ([60, 365],)
    param_names = ("nights",)

    def setup(self, num_nights: int) -> None:
        self.results = Path(tempfile.mkdtemp())
        year(self.results, num_nights, 15)
        asv_results.write(self.results, nights(self.results))

    def teardown(self, num_nights: int) -> None:
        shutil.rmtree(self.results)

    def time_history(self, num_nights: int) -> None:
        trends(nights(self.results))

    def time_ingest(self, num_nights: int) -> None:
        ingest([SAMPLE], self.results)

    def peakmem_history(self, num_nights: int) -> None:
        trends(nights(self.results))


class Detector:
    """The cost of scanning one series of nightly values, without and with a change."""

    version = "1"
    params = ([60, 365], ["none", "3 %"])
    param_names = ("nights", "step")

    def setup(self, num_nights: int, step: str) -> None:
        draw = random.Random(1)
        at = 2 * num_nights // 3 if step == "3 %" else num_nights
        self.values = [draw.gauss(0, 0.01) + 0.03 * (i >= at) for i in range(num_nights)]

    def time_scan(self, num_nights: int, step: str) -> None:
        scan.changes(self.values, 0.01)
