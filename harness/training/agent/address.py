"""Which network interface ranks talk over: the one that has this node's address."""

import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915


def choose_interface(address: str) -> None:
    """Tell gloo, unless the user has; without it gloo asks for the host's name and may get lost."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    if (name := interface_of(address)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_of(address: str) -> str | None:
    """The interface with this IPv4 address; None if there is none, or the address is a name."""
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
