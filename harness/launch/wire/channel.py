"""Messages between a launching program and its agents: framed, authenticated, never pickled.

A message is a JSON document and the bytes behind it (a file, or none). A socket that an agent
inherits is nobody else's, so its key is empty. Over the network both ends first prove to each other
that they hold the same token, and every frame carries a MAC over its direction, its number and its
content: what is sent can be read by whoever listens on the wire, but not changed, repeated or made
up. Until a peer has proven itself, 64 bytes of it are read and none is interpreted.

    listener -> dialer   GREETING, nonce
    dialer -> listener   nonce, HMAC(token, "dialer" + both nonces)
    listener -> dialer   HMAC(token, "listener" + both nonces), or zeros: another token
    either way           length, HMAC(key, direction + number + body), body
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import selectors
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.base.documents import Json
from harness.base.errors import LaunchError

GREETING = b"scaleproof 1\n"
NONCE = 32
MAC = 32
#: Longest body of one frame; what does not fit is a fault or an attack. Files come in pieces.
LARGEST = 1 << 28
#: Seconds that a peer has to prove itself, and that one send may stand still.
PROOF_S = 5.0
STALL_S = 20.0
#: Peers that may be proving themselves at one time; of more, the oldest from the address that most
#: of them came from is dropped, and may try again.
PENDING = 1024
#: Connections that are taken before proofs are looked at again: a flood must not keep them waiting.
GREETED = 64
#: The answer to a peer with another token; one that is dropped for want of room hears nothing.
REFUSED = bytes(MAC)
#: Bytes of one send, which may stand still for ``STALL_S``; all of a large file may take longer.
PIECE = 1 << 20
_HEAD = struct.Struct(">I")
_BODY = struct.Struct(">I")


class ChannelError(Exception):
    """The other end sent what no honest peer sends; the connection is of no more use."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


class Channel:
    """One end of an authenticated connection. ``dialed`` tells the two directions apart."""

    def __init__(self, sock: socket.socket, key: bytes = b"", *, dialed: bool) -> None:
        sock.settimeout(STALL_S)
        self._sock = sock
        self._key = key
        self._ours, self._theirs = (b"d", b"l") if dialed else (b"l", b"d")
        self._num_sent = self._num_received = 0
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    def address(self) -> str:
        """The address of this end; empty on an inherited socket."""
        return self._sock.getsockname()[0] if self._sock.family != socket.AF_UNIX else ""

    def send(self, message: Json, blob: bytes = b"") -> None:
        """One message; OSError when the other end is gone or does not read."""
        text = json.dumps(message).encode()
        body = b"".join((_BODY.pack(len(text)), text, blob))
        mac = _mac(self._key, self._ours, _count(self._num_sent), body)
        self._num_sent += 1
        frame = memoryview(b"".join((_HEAD.pack(len(body)), mac, body)))
        for start in range(0, len(frame), PIECE):
            self._sock.sendall(frame[start : start + PIECE])

    def receive(self) -> list[tuple[dict[str, Json], bytes]] | None:
        """Messages that are whole after one read, however long that takes to come; None when the
        other end is gone.
        """
        readable = select.poll()  # ``select`` ends at descriptor 1024
        readable.register(self._sock, select.POLLIN)
        readable.poll()  # the socket's own time-out is for sending
        try:
            data = self._sock.recv(1 << 20)
        except ConnectionError:
            return None
        if not data:
            return None
        self._buffer += data
        return list(self._whole())

    def _whole(self) -> Iterator[tuple[dict[str, Json], bytes]]:
        while len(self._buffer) >= _HEAD.size + MAC:
            (length,) = _HEAD.unpack_from(self._buffer)
            if not _BODY.size <= length <= LARGEST:
                raise ChannelError(f"a frame of {length} bytes")
            end = _HEAD.size + MAC + length
            if len(self._buffer) < end:
                return
            mac = bytes(self._buffer[_HEAD.size : _HEAD.size + MAC])
            body = bytes(self._buffer[_HEAD.size + MAC : end])
            del self._buffer[:end]
            expected = _mac(self._key, self._theirs, _count(self._num_received), body)
            if not hmac.compare_digest(mac, expected):
                raise ChannelError("a frame that its sender cannot have made")
            self._num_received += 1
            (size,) = _BODY.unpack_from(body)
            message = _parsed(body[_BODY.size : _BODY.size + size])
            if not isinstance(message, dict):
                raise ChannelError("a message that is no object")
            yield message, body[_BODY.size + size :]

    def close(self) -> None:
        self._sock.close()


def _parsed(text: bytes) -> Json:
    """A message's document; ChannelError for one that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a message that is no JSON: {error}") from None


def _count(number: int) -> bytes:
    return number.to_bytes(8, "big")


def make_token(path: Path) -> None:
    """A new secret in a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(secrets.token_hex(32) + "\n")


def read_token(path: Path) -> bytes:
    """The secret; LaunchError if the file is not there, empty, or readable by others."""
    fix = f"(umask 077; head -c 32 /dev/urandom | xxd -p -c 64 > {path})"
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise LaunchError(f"token file: {error.strerror}", where=str(path), fix=fix) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise LaunchError(
            "other users can read the token",
            where=str(path),
            expected="mode 600",
            fix=f"chmod 600 {path}",
        )
    if len(text) < 32:
        raise LaunchError(
            "the file holds no token", where=str(path), expected="at least 32 characters", fix=fix
        )
    return text.encode()


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``; an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise LaunchError(
            f"{text!r} is not an address", expected="HOST:PORT", fix="scaleproof jobs join --help"
        )
    return host.strip("[]"), int(port)


def dial(address: str, token: bytes, timeout_s: float) -> Channel:
    """Connect to a listener and prove each other; LaunchError if it cannot be reached or lies.

    Tries again until ``timeout_s``: a node may be up before the program that waits for it, and
    that may be busy with others.
    """
    host, port = parse_address(address)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with contextlib.ExitStack() as stack:
                sock = stack.enter_context(socket.create_connection((host, port), timeout=PROOF_S))
                key = _prove(sock, token, address)
                stack.pop_all()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"cannot be reached: {error.strerror or error}",
                    where=address,
                    expected="a scaleproof run that waits for nodes at this address",
                    fix=f"nc -vz {host} {port}",
                ) from None
            time.sleep(0.2)
    _notice_loss(sock)
    return Channel(sock, key, dialed=True)


def _prove(sock: socket.socket, token: bytes, address: str) -> bytes:
    """The key of a session with a listener that holds the token too; LaunchError if it does not.

    OSError of one that has no time: it may be asked again.
    """
    lied = LaunchError(
        "the program there has another token, or is not scaleproof",
        where=address,
        expected="the token file of the run to join",
        fix="sha256sum TOKEN_FILE on both machines",
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    greeting = _exactly(sock, len(GREETING) + NONCE)
    if greeting[: len(GREETING)] != GREETING:
        raise lied
    theirs = greeting[len(GREETING) :]
    ours = secrets.token_bytes(NONCE)
    sock.sendall(ours + _mac(token, b"dialer", theirs, ours))
    answer = _exactly(sock, MAC)  # an end before it is no answer: there was no room
    if not hmac.compare_digest(answer, _mac(token, b"listener", theirs, ours)):
        raise lied
    return _mac(token, b"session", theirs, ours)


def _exactly(sock: socket.socket, size: int) -> bytes:
    """``size`` bytes; ConnectionError when the other end leaves before."""
    received = b""
    while len(received) < size:
        data = sock.recv(size - len(received))
        if not data:
            raise ConnectionError("closed")
        received += data
    return received


def _notice_loss(sock: socket.socket) -> None:
    """Ask the kernel to break the connection when the other end has not answered for 10 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def server(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens on an address of either family; on all of both without a host.

    LaunchError for a host that is not of this machine.
    """
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel without IPv6
            return socket.create_server(
                (host, port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
    try:
        family = socket.AF_INET
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise LaunchError(
            f"cannot listen: {error.strerror or error}",
            where=f"{host}:{port}",
            expected="an address of this machine",
            fix="ip -brief address",
        ) from None


class Pending:
    """A peer that is proving itself: since when, from where, our nonce, and what it has sent."""

    def __init__(self, address: str) -> None:
        self.since = time.monotonic()
        self.address = address
        self.nonce = secrets.token_bytes(NONCE)
        self.got = bytearray()


class Listener:
    """Waits for agents that hold the token; whoever else knocks is dropped and counted.

    ``forget``: the token's file was made for this listener, and goes with it.
    """

    def __init__(
        self, token_file: Path, host: str = "", port: int = 0, *, forget: bool = False
    ) -> None:
        self._token = read_token(token_file)
        self._forget = token_file if forget else None
        self._sock = server(host, port, PENDING)
        self._sock.setblocking(False)
        self._pending: dict[socket.socket, Pending] = {}
        self.num_refused = 0

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def accept(self, timeout_s: float) -> list[Channel]:
        """Agents that have proven themselves within ``timeout_s``; never waits for one peer."""
        proven = []
        with selectors.DefaultSelector() as selector:
            for sock in (self._sock, *self._pending):
                selector.register(sock, selectors.EVENT_READ)
            for key, _ in selector.select(timeout_s):
                if key.fileobj is self._sock:
                    self._welcome()
                elif key.fileobj in self._pending:  # else it was dropped for another one just now
                    channel = self._examine(key.fileobj)
                    proven += [] if channel is None else [channel]
        now = time.monotonic()
        for sock, peer in list(self._pending.items()):
            if now - peer.since > PROOF_S:
                self._refuse(sock)
        return proven

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(GREETED):
                sock, address = self._sock.accept()
                self._greet(sock, str(address[0]))

    def _greet(self, sock: socket.socket, address: str) -> None:
        if len(self._pending) >= PENDING:
            busiest, _ = Counter(pending.address for pending in self._pending.values()).most_common(
                1
            )[0]
            self._refuse(next(s for s, p in self._pending.items() if p.address == busiest))
        sock.setblocking(False)
        peer = Pending(address)
        self._pending[sock] = peer
        try:
            sock.send(GREETING + peer.nonce)
        except OSError:
            self._refuse(sock)

    def _examine(self, sock: socket.socket) -> Channel | None:
        """Take what has arrived of a peer's proof; a Channel when it is whole and right."""
        ours, received = self._pending[sock].nonce, self._pending[sock].got
        try:
            data = sock.recv(NONCE + MAC - len(received))
        except OSError:
            data = b""
        received += data
        if len(received) < NONCE + MAC:
            if not data:
                self._refuse(sock)
            return None
        theirs = bytes(received[:NONCE])
        proof = bytes(received[NONCE:])
        if not hmac.compare_digest(proof, _mac(self._token, b"dialer", ours, theirs)):
            with contextlib.suppress(OSError):
                sock.send(REFUSED)
            self._refuse(sock)
            return None
        del self._pending[sock]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_loss(sock)
        channel = Channel(sock, _mac(self._token, b"session", ours, theirs), dialed=False)
        try:
            sock.sendall(_mac(self._token, b"listener", ours, theirs))
        except OSError:
            channel.close()
            return None
        return channel

    def _refuse(self, sock: socket.socket) -> None:
        del self._pending[sock]
        sock.close()
        self.num_refused += 1

    def close(self) -> None:
        for sock in list(self._pending):
            sock.close()
        self._pending.clear()
        self._sock.close()
        if self._forget is not None:
            self._forget.unlink(missing_ok=True)
