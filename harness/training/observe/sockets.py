"""Bytes on the wire: TCP_INFO summed over the rank's own sockets.

No privileges, any engine, about 0.3 ms. ``bytes_acked`` counts what the peer confirmed, so
retransmissions are not in it; they are reported apart.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

# Offsets in struct tcp_info (Linux >= 4.19); the returned length is checked before use.
_ACKED, _RETRANSMITTED, _NEEDED = 120, 208, 216


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
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            except OSError:
                return None
            if len(info) < _NEEDED:
                return None
            sent += struct.unpack_from("Q", info, _ACKED)[0]
            resent += struct.unpack_from("Q", info, _RETRANSMITTED)[0]
    return Wire(sent_bytes=sent, resent_bytes=resent)
