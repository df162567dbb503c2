"""Check whether this machine can reach itself, which its ranks need."""

import socket

#: The command that makes it reachable.
FIX = "ip link set lo up"


def unreachable() -> str:
    """Return why 127.0.0.1 cannot be reached; empty if it can."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as door,
            socket.create_connection(door.getsockname(), timeout=5.0),
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)
