"""Bytes are counted when they are written, not when they are acknowledged."""

from __future__ import annotations

import socket

from harness.training.observe import kernel_counters


def test_unacknowledged_bytes_are_counted_once() -> None:
    """On a busy host, late acknowledgements must not count in the next step."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with socket.create_connection(server.getsockname()) as ours:
            theirs, _ = server.accept()
            with theirs:
                before = kernel_counters.read()
                ours.setblocking(False)
                written = ours.send(b"x" * (8 << 20))  # more than the peer takes without reading
                first = kernel_counters.read()
                assert before and first and first.since(before).sent_bytes == written
                left = written
                while left:
                    left -= len(theirs.recv(1 << 16))
                after = kernel_counters.read()
                assert after and after.since(first).sent_bytes == 0, "acknowledged, not sent again"
