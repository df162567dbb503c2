"""Bytes on the wire: TCP_INFO summed over the rank's own sockets.

No privileges, any engine, about 0.3 ms. What the peer confirmed (``bytes_acked``) and what waits
for that (``SIOCOUTQ``) is what was written: the same at once and later, however late a busy host
acknowledges. Retransmissions are not in it; they are reported apart.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass

# Offsets in struct tcp_info (Linux >= 4.19); the returned length is checked before use.
_ACKED = 120
_RETRANSMITTED = 208
_NEEDED = 216
_SIOCOUTQ = 0x5411
#: How often a socket is read again that is acknowledged while it is read.
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes since the sockets were opened."""

    sent_bytes: int
    resent_bytes: int

    def since(self, before: Wire) -> Wire:
        """The difference to an earlier reading."""
        return Wire(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            resent_bytes=self.resent_bytes - before.resent_bytes,
        )

    def __add__(self, other: Wire) -> Wire:
        """Both together."""
        return Wire(
            sent_bytes=self.sent_bytes + other.sent_bytes,
            resent_bytes=self.resent_bytes + other.resent_bytes,
        )


def read() -> Wire | None:
    """All TCP sockets of this process; None where the kernel does not say."""
    sent = resent = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue  # closed since it was listed
        with socket.socket(fileno=duplicate) as sock:
            if (
                sock.family not in (socket.AF_INET, socket.AF_INET6)
                or sock.type != socket.SOCK_STREAM
            ):
                continue
            try:
                of_one = _written(sock)
            except OSError:
                return None
            if of_one is None:
                return None
            sent = sent + of_one[0]
            resent = resent + of_one[1]
    return Wire(sent_bytes=sent, resent_bytes=resent)


def _queued(sock: socket.socket) -> int:
    """Bytes that wait to be sent or acknowledged; one that only listens has none."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, _SIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0


def _written(sock: socket.socket) -> tuple[int, int] | None:
    """Bytes written to a socket, and bytes sent again; None where the kernel does not say."""
    acked = -1
    for _ in range(_TRIES):
        queued = _queued(sock)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) < _NEEDED:
            return None
        before = acked
        acked = struct.unpack_from("Q", info, _ACKED)[0]
        if not queued or acked == before:
            break
    return acked + queued, struct.unpack_from("Q", info, _RETRANSMITTED)[0]
