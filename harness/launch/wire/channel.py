"""Authenticated connections between the main program and its agents; nothing is pickled.

A message is a JSON document, optionally followed by bytes (a file). A socket that an agent inherits
is private to the two processes, so its key is empty. Over the network, both ends first prove to
each other that they hold the same token. Then every frame carries a MAC over its direction, its
number and its content. The traffic is not encrypted, but nobody else can change, repeat or forge a
frame. Until a peer has proven that it holds the token, at most 64 of its bytes are read, and none
is interpreted.

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
#: The most bytes in the body of one frame. A larger frame is an error or an attack, because files
#: are sent in pieces.
LARGEST = 1 << 28
#: Seconds within which a peer must authenticate.
PROOF_S = 5.0
#: Seconds for which one send may make no progress.
STALL_S = 20.0
#: The most peers that may be authenticating concurrently. If there are more, the oldest peer
#: from the most frequent address is dropped; it may try again.
PENDING = 1024
#: The most connections that are accepted before proofs are read again, so that a flood of
#: connections does not delay peers that are authenticating.
GREETED = 64
#: The answer to a peer with another token. A peer that is dropped because there are too many gets
#: no answer.
REFUSED = bytes(MAC)
#: Bytes of one send. ``STALL_S`` applies to each send, so a large file may take longer in total.
PIECE = 1 << 20
_HEAD = struct.Struct(">I")
_BODY = struct.Struct(">I")


class ChannelError(Exception):
    """The other end sent something that violates the protocol; the connection must be closed."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA256 of the joined parts."""
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


class Channel:
    """One end of an authenticated connection.

    ``dialed`` is True at the end that connected, and False at the end that listened. It
    distinguishes the two directions in the MAC of a frame.
    """

    def __init__(self, sock: socket.socket, key: bytes = b"", *, dialed: bool) -> None:
        sock.settimeout(STALL_S)
        self._sock = sock
        self._key = key
        self._ours, self._theirs = (b"d", b"l") if dialed else (b"l", b"d")
        self._num_sent = self._num_received = 0
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Return the descriptor of the socket, so that a selector accepts a channel."""
        return self._sock.fileno()

    def address(self) -> str:
        """Return the IP address of this end, or "" for an inherited socket."""
        return self._sock.getsockname()[0] if self._sock.family != socket.AF_UNIX else ""

    def send(self, message: Json, blob: bytes = b"") -> None:
        """Send one message. Raise OSError if the other end is gone or does not read."""
        text = json.dumps(message).encode()
        body = b"".join((_BODY.pack(len(text)), text, blob))
        mac = _mac(self._key, self._ours, _count(self._num_sent), body)
        self._num_sent += 1
        frame = memoryview(b"".join((_HEAD.pack(len(body)), mac, body)))
        for start in range(0, len(frame), PIECE):
            self._sock.sendall(frame[start : start + PIECE])

    def receive(self) -> list[tuple[dict[str, Json], bytes]] | None:
        """Wait for data without a time limit, read once, and return the messages that are complete.

        Return None if the other end is gone. Raise ChannelError for an invalid frame.
        """
        readable = select.poll()  # ``select`` only supports descriptors below 1024
        readable.register(self._sock, select.POLLIN)
        readable.poll()  # without a limit, because the socket's time-out is meant for sending
        try:
            data = self._sock.recv(1 << 20)
        except ConnectionError:
            return None
        if not data:
            return None
        self._buffer += data
        return list(self._whole())

    def _whole(self) -> Iterator[tuple[dict[str, Json], bytes]]:
        """Check and yield the complete messages in the buffer, and remove them from it."""
        while len(self._buffer) >= _HEAD.size + MAC:
            (length,) = _HEAD.unpack_from(self._buffer)
            if not _BODY.size <= length <= LARGEST:
                raise ChannelError(f"a frame has the invalid length {length}")
            end = _HEAD.size + MAC + length
            if len(self._buffer) < end:
                return
            mac = bytes(self._buffer[_HEAD.size : _HEAD.size + MAC])
            body = bytes(self._buffer[_HEAD.size + MAC : end])
            del self._buffer[:end]
            expected = _mac(self._key, self._theirs, _count(self._num_received), body)
            if not hmac.compare_digest(mac, expected):
                raise ChannelError("a frame has a wrong MAC")
            self._num_received += 1
            (size,) = _BODY.unpack_from(body)
            message = _parsed(body[_BODY.size : _BODY.size + size])
            if not isinstance(message, dict):
                raise ChannelError("a message is not a JSON object")
            yield message, body[_BODY.size + size :]

    def close(self) -> None:
        self._sock.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._sock.fileno() == -1


def _parsed(text: bytes) -> Json:
    """Return the document in a message. Raise ChannelError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a message is not JSON: {error}") from None


def _count(number: int) -> bytes:
    """Return the number of a frame as bytes for its MAC."""
    return number.to_bytes(8, "big")


def make_token(path: Path) -> None:
    """Write a new random token to a new file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(secrets.token_hex(32) + "\n")


def read_token(path: Path) -> bytes:
    """Return the token in a file.

    Raise LaunchError if the file is missing or too short, or if other users can read it.
    """
    fix = f"(umask 077; head -c 32 /dev/urandom | xxd -p -c 64 > {path})"
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise LaunchError(
            f"the token file cannot be read: {error.strerror}", where=str(path), fix=fix
        ) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise LaunchError(
            "other users can read the token file",
            where=str(path),
            expected="mode 600",
            fix=f"chmod 600 {path}",
        )
    if len(text) < 32:
        raise LaunchError(
            "the token is too short", where=str(path), expected="at least 32 characters", fix=fix
        )
    return text.encode()


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` into host and port. An IPv6 host is written in brackets.

    Raise LaunchError if the text is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise LaunchError(
            f"{text!r} is not an address", expected="HOST:PORT", fix="scaleproof jobs join --help"
        )
    return host.strip("[]"), int(port)


def dial(address: str, token: bytes, timeout_s: float) -> Channel:
    """Connect to a listener, and let both ends prove that they hold the token.

    Attempts are repeated for ``timeout_s`` seconds, because the node may be up before the main
    program, which may also be busy with other agents. Raise LaunchError if the listener cannot be
    reached or has another token.
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
                    f"the address cannot be reached: {error.strerror or error}",
                    where=address,
                    expected="a scaleproof run that is waiting for nodes at this address",
                    fix=f"nc -vz {host} {port}",
                ) from None
            time.sleep(0.2)
    _notice_loss(sock)
    return Channel(sock, key, dialed=True)


def _prove(sock: socket.socket, token: bytes, address: str) -> bytes:
    """Return the key of a session with a listener that proves that it holds the token.

    Raise LaunchError if it does not hold the token, and OSError if it drops the connection because
    it is busy. In the second case the caller may try again.
    """
    lied = LaunchError(
        "the program at this address has another token, or is not scaleproof",
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
    # If the connection ends here, the listener had too many peers: ``_exactly`` raises OSError.
    answer = _exactly(sock, MAC)
    if not hmac.compare_digest(answer, _mac(token, b"listener", theirs, ours)):
        raise lied
    return _mac(token, b"session", theirs, ours)


def _exactly(sock: socket.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes. Raise ConnectionError if the other end closes before."""
    received = b""
    while len(received) < size:
        data = sock.recv(size - len(received))
        if not data:
            raise ConnectionError("closed")
        received += data
    return received


def _notice_loss(sock: socket.socket) -> None:
    """Ask the kernel to end the connection if the other end does not answer for 10 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def server(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on an IPv4 or IPv6 address of this machine.

    Without a host it listens on all addresses of both families. Raise LaunchError if the host is
    not an address of this machine.
    """
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # the kernel may lack IPv6
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
    """A peer that has not authenticated yet.

    ``since`` is the time of its connection, ``address`` its IP address, ``nonce`` the nonce that
    was sent to it, and ``got`` the bytes that it has sent so far.
    """

    def __init__(self, address: str) -> None:
        self.since = time.monotonic()
        self.address = address
        self.nonce = secrets.token_bytes(NONCE)
        self.got = bytearray()


class Listener:
    """A socket that accepts agents that hold the token, and counts and drops all other peers.

    ``forget`` means that the token file was made for this listener, so ``close`` deletes it.
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
        """The port of the listening socket."""
        return int(self._sock.getsockname()[1])

    def accept(self, timeout_s: float) -> list[Channel]:
        """Return channels to the agents that authenticate within ``timeout_s`` seconds.

        A slow peer never delays other peers.
        """
        proven = []
        with selectors.DefaultSelector() as selector:
            for sock in (self._sock, *self._pending):
                selector.register(sock, selectors.EVENT_READ)
            for key, _ in selector.select(timeout_s):
                if key.fileobj is self._sock:
                    self._welcome()
                elif key.fileobj in self._pending:  # it may have been dropped in this loop
                    channel = self._examine(key.fileobj)
                    proven += [] if channel is None else [channel]
        now = time.monotonic()
        for sock, peer in list(self._pending.items()):
            if now - peer.since > PROOF_S:
                self._refuse(sock)
        return proven

    def _welcome(self) -> None:
        """Accept the connections that are waiting, ``GREETED`` at most."""
        with contextlib.suppress(OSError):
            for _ in range(GREETED):
                sock, address = self._sock.accept()
                self._greet(sock, str(address[0]))

    def _greet(self, sock: socket.socket, address: str) -> None:
        """Greet a new peer with a nonce, and drop an old peer if there are too many."""
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
        """Read more of a peer's proof, and return a channel if the proof is complete and valid."""
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
        """Drop a peer that has not authenticated, and count it."""
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
