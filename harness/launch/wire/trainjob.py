"""Messages to the controller of a TrainJob, by the agent on its first node.

Kubeflow Trainer (2.2 and later, feature gate ``TrainJobStatus``) gives the pods of a TrainJob, and
nobody else, the address that takes its status, a token for it, and the certificate of whoever
answers there. An agent has no thread beside its own, since it forks ranks: a process sends, which
imports nothing of this package. It is started before a launch, and gone before steps are timed.
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
#: Seconds between two of them, as its guide asks for; and for one.
EVERY_S = 5.0
REQUEST_S = 5.0
#: What a metric's name, and its value, may have: characters.
MOST_CHARS = 64
#: Seconds that an int32 holds.
MOST_S = 2**31 - 1


def status(
    elapsed_s: float, left_s: float | None, launch: Mapping[str, str], now_s: float
) -> dict[str, Any]:
    """The document that its controller takes. A run that goes on is at 99 % at most; of one whose
    end is not foreseen there is no share. ``now_s`` is s since the epoch.
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
    """Sends one status after the other, none while the last is under way; nothing elsewhere than in
    a TrainJob.
    """

    def __init__(self) -> None:
        self._wanted = all(os.environ.get(name) for name in (URL, CERTIFICATE, TOKEN))
        self._sent_at = -math.inf
        self._child: subprocess.Popen[bytes] | None = None

    def tell(self, elapsed_s: float, left_s: float | None, launch: Mapping[str, str]) -> None:
        """Start to send it; nobody waits for the answer."""
        due = time.monotonic() - self._sent_at >= EVERY_S
        if not self._wanted or not due or (self._child is not None and self._child.poll() is None):
            return
        self._sent_at = time.monotonic()
        document = json.dumps(status(elapsed_s, left_s, launch, time.time())).encode()
        with contextlib.suppress(OSError):  # no run ends because nobody hears of it
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
        """Send nothing more."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def send(document: bytes) -> int:
    """Post it; the HTTP status. The token is read each time: it is exchanged every hour."""
    address = urlsplit(os.environ[URL])
    if address.scheme != "https" or address.hostname is None:
        raise ValueError("a status goes over https alone: its token does")
    context = ssl.create_default_context(cafile=os.environ[CERTIFICATE])
    token = Path(os.environ[TOKEN]).read_text(encoding="utf-8").strip()
    connection = http.client.HTTPSConnection(  # neither a proxy nor another address gets the token
        address.hostname, address.port, timeout=REQUEST_S, context=context
    )
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request("POST", address.path, document, headers)
        return connection.getresponse().status


if __name__ == "__main__":
    raise SystemExit(send(sys.stdin.buffer.read()) != http.client.OK)
