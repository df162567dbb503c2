"""Choose the network interface that ranks use: the one with this node's address."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from harness.base.errors import LaunchError
from harness.host import loopback

_SIOCGIFADDR = 0x8915


def refuse_no_loopback() -> None:
    """Raise LaunchError if this machine cannot reach itself over its loopback interface.

    Its ranks would otherwise wait for each other until their deadlines.
    """
    if why := loopback.unreachable():
        raise LaunchError(
            f"the loopback interface (127.0.0.1) cannot be reached: {why}",
            where="this machine",
            expected="a loopback interface that is up",
            fix=loopback.FIX,
        )


def choose_interface(address: str) -> None:
    """Set GLOO_SOCKET_IFNAME to the interface with this address, unless the user has set it.

    Without it gloo resolves the name of the host, which may lead to another interface.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    if (name := interface_of(address)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_of(address: str) -> str | None:
    """Return the interface with this IP address, or None if there is none."""
    if ":" in address:
        return _of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _of_ipv6(address: str) -> str | None:
    """Return the interface with this IPv6 address from the kernel's table, or None.

    Each line of the table has 32 hexadecimal digits, four more columns, and the interface's name.
    """
    with contextlib.suppress(OSError, ValueError):
        wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
        for line in Path("/proc/net/if_inet6").read_text(encoding="utf-8").splitlines():
            digits, *_, name = line.split()
            if digits == wanted:
                return name
    return None
