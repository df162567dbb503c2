"""Report the progress of a run to the controller of a TrainJob, from the agent on its first node.

Kubeflow Trainer (2.2 and later, feature gate ``TrainJobStatus``) gives only the pods of a TrainJob
the address of its status server, a token for it, and the server's certificate. An agent forks ranks
and must not have other threads, so a separate process sends each status. This file is its program
and imports nothing from this package. The process starts before a launch and ends before steps are
timed.
"""

import contextlib
import http.client
import json
import math
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URL, CERTIFICATE, TOKEN = (
    f"KUBEFLOW_TRAINER_SERVER_{what}" for what in ("URL", "CA_CERT", "TOKEN")
)
#: Minimum time in seconds between two reports, as the guide of Kubeflow Trainer requests.
EVERY_S = 5.0
#: Seconds that one request may take.
REQUEST_S = 5.0
#: Maximum number of characters in the name or the value of a metric that the controller accepts.
MOST_CHARS = 64
#: Maximum number of seconds that fits into the controller's int32.
MOST_S = 2**31 - 1


def status(
    elapsed_s: float, left_s: float | None, launch: Mapping[str, str], now_s: float
) -> dict[str, Any]:
    """Return the status document in the format that the controller accepts.

    A run that is still in progress reports 99 % at most. If ``left_s`` is None because the end
    cannot be predicted, the document has no percentage. ``launch`` holds the metrics to show, and
    ``now_s`` is the time in seconds since the epoch.
    """
    document: dict[str, Any] = {
        "metrics": [
            {"name": name[:MOST_CHARS], "value": value[:MOST_CHARS]}
            for name, value in launch.items()
            if value
        ],
        "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s)),
    }
    if left_s is not None and elapsed_s + left_s > 0:
        document["progressPercentage"] = max(
            0, min(99, int(100 * elapsed_s / (elapsed_s + left_s)))
        )
        document["estimatedRemainingSeconds"] = max(0, min(MOST_S, math.ceil(left_s)))
    return {"trainerStatus": document}


class Reporter:
    """A sender of status documents, which does nothing outside a TrainJob.

    It skips a status while the previous one is still being sent.
    """

    def __init__(self) -> None:
        self._wanted = all(os.environ.get(name) for name in (URL, CERTIFICATE, TOKEN))
        self._sent_at = -math.inf
        self._child: subprocess.Popen[bytes] | None = None

    def tell(self, elapsed_s: float, left_s: float | None, launch: Mapping[str, str]) -> None:
        """Start a process that sends the status, if one is due, without waiting for the answer."""
        due = time.monotonic() - self._sent_at >= EVERY_S
        if not self._wanted or not due or (self._child is not None and self._child.poll() is None):
            return
        self._sent_at = time.monotonic()
        document = json.dumps(status(elapsed_s, left_s, launch, time.time())).encode()
        with contextlib.suppress(OSError):  # a run must not fail because its status cannot be sent
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert self._child.stdin is not None
            with self._child.stdin as stdin:
                stdin.write(document)

    def close(self) -> None:
        """End the process that is sending, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def send(document: bytes) -> int:
    """Send a document by POST, and return the HTTP status.

    The token is read from its file each time, because it is replaced every hour. Raise ValueError
    if the address does not use https.
    """
    address = urlsplit(os.environ[URL])
    if address.scheme != "https" or address.hostname is None:
        raise ValueError(f"{URL} must be an https address, because the request holds a token")
    context = ssl.create_default_context(cafile=os.environ[CERTIFICATE])
    token = Path(os.environ[TOKEN]).read_text(encoding="utf-8").strip()
    # http.client uses no proxy and follows no redirect, so no other host receives the token.
    connection = http.client.HTTPSConnection(
        address.hostname, address.port, timeout=REQUEST_S, context=context
    )
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request("POST", address.path, document, headers)
        return connection.getresponse().status


if __name__ == "__main__":
    raise SystemExit(send(sys.stdin.buffer.read()) != http.client.OK)
