"""The Perfetto button of the page: a real browser sends the trace to Perfetto, or saves it as a
file.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.interface.cli.main import main
from harness.interface.report.page.page import render
from harness.record import Purpose, RunRecord
from harness.record.store import load

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium: bash scripts/system-packages.sh"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-popup-blocking",
    "--disable-quic", "--ignore-certificate-errors",
)  # fmt: skip
CLICK = "<script>document.getElementById('perfetto').click()</script></body>"


SAMPLE = Path(__file__).parents[3] / "results/samples/ddp-nano"


@pytest.fixture(scope="module")
def run() -> RunRecord:
    """Return a tracked sample that has its traces."""
    return load(SAMPLE)


@pytest.fixture(scope="module")
def page(run: RunRecord) -> str:
    return render(run, SAMPLE)


def trace_of(page: str) -> dict[str, Any]:
    text = re.search(r'id="trace" data-name="[^"]+">([^<]+)<', page)
    assert text
    document: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text[1])))
    return document


def test_the_trace_of_a_page_contains_every_profiled_case_by_name(
    page: str, run: RunRecord
) -> None:
    events = trace_of(page)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    cases = {a.case.hash: a.case for plan in run.plans for a in plan.arms}
    profiled = {x.case for x in run.launches if x.purpose is Purpose.PROFILE}
    wanted = {f"{cases[h].id}, rank {r}" for h in profiled for r in range(cases[h].world_size)}
    assert set(names.values()) == wanted and len(names) == len(wanted)
    for number in names:
        drawn = [e["ts"] for e in events if e["ph"] == "X" and e["pid"] == number]
        assert 0 <= min(drawn) < 1e6, "all cases must start at the same time"


def test_a_page_without_its_folder_has_no_button(run: RunRecord) -> None:
    assert "Open in Perfetto" not in render(run)


def test_merged_traces_are_named_by_case(tmp_path: Path) -> None:
    assert main(["report", "timeline", str(SAMPLE), "--merge", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert "all.trace.json.gz" in names
    assert any(n.startswith("ddp-decoder-nano-weak@2cpu-") for n in names), names


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[tuple[int, list[bytes], threading.Event]]:
    """Serve a page as ui.perfetto.dev that answers like Perfetto and stores what is posted to it."""
    pytest.importorskip("cryptography")
    got: list[bytes] = []
    came = threading.Event()
    answer = b"""<script>onmessage=async e=>{if(e.data==='PING')e.source.postMessage('PONG','*');
    else if(e.data.perfetto)await fetch('/got?'+e.data.perfetto.title,{method:'POST',
    body:e.data.perfetto.buffer})}</script>"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_port, got, came
    server.shutdown()
    server.server_close()


def certificate(folder: Path) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ui.perfetto.dev")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@needs_chromium
@pytest.mark.full
def test_perfetto_receives_the_trace(
    page: str, perfetto: tuple[int, list[bytes], threading.Event], tmp_path: Path
) -> None:
    """The browser's real postMessage crosses two origins; a fake server answers in place of
    Perfetto.
    """
    port, got, came = perfetto
    file = tmp_path / "report.html"
    file.write_text(page.replace("</body>", CLICK))
    rules = f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{port}"
    with browsing(file, tmp_path, rules):
        assert came.wait(90)
    assert json.loads(gzip.decompress(got[0])) == trace_of(page)


@needs_chromium
@pytest.mark.full
def test_without_an_answer_of_perfetto_the_file_is_saved(page: str, tmp_path: Path) -> None:
    listed: list[str] = []
    came = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed.append(self.path)
            came.set()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    tells = f"""<script>setInterval(()=>{{const s=document.getElementById('perfetto').dataset.state;
    if(s==='saved')fetch('http://127.0.0.1:{server.server_port}/'+s,{{mode:'no-cors'}})}},100)</script>"""
    file = tmp_path / "report.html"
    file.write_text(page.replace("</body>", tells + CLICK))
    rules = "--host-resolver-rules=MAP ui.perfetto.dev ~NOTFOUND"
    with browsing(file, tmp_path, rules):
        assert came.wait(90) and listed[0] == "/saved"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def browsing(file: Path, folder: Path, *flags: str) -> Iterator[None]:
    """Show a file in a browser until the block ends."""
    words = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}/profile", *flags]
    browser = subprocess.Popen(
        [*words, "--remote-debugging-port=0", file.as_uri()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        browser.terminate()
        browser.wait()
