"""The Grafana dashboard: a real Prometheus scrapes the exported metrics, and every panel shows
data.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.interface.cli.main import main
from harness.interface.export import _GAUGES
from harness.interface.report.heartbeat import openmetrics
from harness.measure.progress import Moment
from harness.record import Purpose

ROOT = Path(__file__).parents[3]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples/grafana/scaleproof.json").read_text())
PROMETHEUS = shutil.which("prometheus")
EXPRESSIONS = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def test_the_dashboard_shows_every_exported_gauge() -> None:
    """It also queries no gauge that is not exported."""
    live = {"heartbeat_timestamp_seconds", "left_seconds", "run_left_seconds", "run_info"}
    known = {f"scaleproof_{name}" for name in {*(g for g, _, _ in _GAUGES), *live}}
    named = {n for _, e in EXPRESSIONS for n in re.findall(r"scaleproof_\w+", e)}
    assert named == known


def test_panels_do_not_overlap() -> None:
    """The grid has 24 columns, and no two panels cover the same cell."""
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in DASHBOARD["panels"]):
        across = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in across for y in range(place["y"], place["y"] + place["h"])}
        assert across.stop <= 24 and not taken & cells
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


class Quiet(SimpleHTTPRequestHandler):
    """An HTTP server for the files of one folder, which serves ``.prom`` files as OpenMetrics."""

    extensions_map = {".prom": "application/openmetrics-text; version=1.0.0; charset=utf-8"}  # noqa: RUF012

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def scraped(folder: Path) -> Iterator[str]:
    """Yield the address of a Prometheus server that scrapes every file of a folder."""
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=files.serve_forever, args=(0.05,), daemon=True).start()
    jobs = [
        {
            "job_name": path.stem,
            "scrape_interval": "1s",
            "metrics_path": f"/{path.name}",
            "static_configs": [{"targets": [f"127.0.0.1:{files.server_port}"]}],
        }
        for path in folder.glob("*.prom")
    ]
    config = folder / "prometheus.json"
    config.write_text(json.dumps({"scrape_configs": jobs}))  # JSON is valid YAML.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
    server = subprocess.Popen(
        [*words, f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()
        files.shutdown()
        files.server_close()


def asked(server: str, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{server}/api/v1/query?{query}") as answer:
        document = json.load(answer)
    result: list[Any] = document["data"]["result"]
    return result


@pytest.mark.full
@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus: apt-get install prometheus")
def test_every_panel_shows_data_of_a_real_run(sample: Path, tmp_path: Path) -> None:
    assert main(["report", "export", str(sample), "--to", str(tmp_path / "run.prom")]) == 0
    now = Moment(
        plan="ddp/x", number=1, num_plans=2, arm="ddp/x@2", purpose=Purpose.TIMED, launch=3,
        num_launches=8, step=3, num_steps=10, elapsed_s=20.0, left_s=80.0, last="",
    )  # fmt: skip
    (tmp_path / "live.prom").write_text(openmetrics(now, time.time(), 0))
    with scraped(tmp_path) as server:
        until = time.monotonic() + 60
        scrapes = 0
        while scrapes < 2 and time.monotonic() < until:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                scrapes = len([r for r in asked(server, "up") if r["value"][1] == "1"])
        assert scrapes == 2, "Prometheus must accept both files as OpenMetrics"
        for title, expression in EXPRESSIONS:
            filled = expression.replace("$machine", ".*").replace("$case", ".*")
            assert asked(server, filled), f"{title}: {expression}"
