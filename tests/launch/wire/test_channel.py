"""The control channel drops peers without the token, and never obeys them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from harness.base.errors import LaunchError
from harness.launch.wire.channel import (
    GREETED,
    GREETING,
    LARGEST,
    NONCE,
    PENDING,
    PROOF_S,
    Channel,
    ChannelError,
    Listener,
    dial,
    make_token,
    parse_address,
    read_token,
)
from tests.waiting import until


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    make_token(path)
    return path


@pytest.fixture
def listener(token: Path) -> Iterator[Listener]:
    found = Listener(token, "127.0.0.1")
    yield found
    found.close()


OPEN: list[Channel | socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def join(listener: Listener, token: Path) -> tuple[Channel, Channel]:
    """Connect as a node does, and return both ends of the connection."""
    ours: list[Channel] = []
    thread = threading.Thread(
        target=lambda: ours.append(dial(f"127.0.0.1:{listener.port}", read_token(token), 5))
    )
    thread.start()
    theirs: list[Channel] = []
    while not theirs:
        theirs = listener.accept(0.05)
    thread.join()
    OPEN.extend((ours[0], theirs[0]))
    return ours[0], theirs[0]


def test_messages_and_files_cross_both_ways(listener: Listener, token: Path) -> None:
    node, program = join(listener, token)
    node.send({"file": "x"}, b"\0" * 3000)
    program.send({"kill": True})
    assert program.receive() == [({"file": "x"}, b"\0" * 3000)]
    assert node.receive() == [({"kill": True}, b"")]


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=50)),
        max_size=5,
    ),
    st.integers(1, 40),
)
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cut(messages: list[tuple[dict[str, int], bytes]], cut: int) -> None:
    near, other = socket.socketpair()
    pipe, far = socket.socketpair()
    sender, receiver = Channel(near, b"k", dialed=True), Channel(far, b"k", dialed=False)
    for message, blob in messages:
        sender.send(message, blob)
    near.close()
    raw, got = b"", []
    while data := other.recv(1 << 16):
        raw += data
    for start in range(0, len(raw), cut):
        pipe.sendall(raw[start : start + cut])
        got += receiver.receive() or []
    assert got == messages
    for sock in (other, pipe, far):
        sock.close()


def test_an_idle_connection_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.wire.channel.STALL_S", 0.05)
    near, other = socket.socketpair()
    ours, theirs = Channel(near, dialed=True), Channel(other, dialed=False)
    OPEN.extend((ours, theirs))
    thread = threading.Timer(0.3, lambda: theirs.send({"late": True}))
    thread.start()
    assert ours.receive() == [({"late": True}, b"")]
    thread.join()


def test_a_node_with_another_token_is_refused_and_says_so(
    listener: Listener, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    make_token(wrong)
    listed: list[str] = []

    def try_it() -> None:
        try:
            dial(f"127.0.0.1:{listener.port}", read_token(wrong), 1)
        except LaunchError as error:
            listed.append(str(error))

    thread = threading.Thread(target=try_it)
    thread.start()
    while thread.is_alive():
        assert listener.accept(0.05) == []
    assert "another token" in listed[0] and "try" in listed[0]
    assert listener.num_refused == 1


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 20,
        os.urandom(4096),
        b"\xff" * 64,
        struct.pack(">I", 2**32 - 1) * 40,
    ],
    ids=["http", "noise", "ones", "lengths"],
)
def test_garbage_is_dropped_and_a_valid_node_still_connects(
    listener: Listener, token: Path, message: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as hostile:
        hostile.sendall(message)
        node, program = join(listener, token)
        while listener.num_refused == 0:
            assert listener.accept(0.05) == []
    node.send({"hello": 1})
    assert program.receive() == [({"hello": 1}, b"")]


@pytest.mark.full
@pytest.mark.alone
def test_slow_peers_do_not_delay_others_and_are_dropped(listener: Listener, token: Path) -> None:
    hostile: list[socket.socket] = []
    for _ in range(PENDING + 5):
        hostile.append(socket.create_connection(("127.0.0.1", listener.port)))
        listener.accept(0.01)
    OPEN.extend(hostile)
    assert listener.num_refused >= 5, "the number of pending connections is limited"
    began = time.monotonic()
    join(listener, token)
    assert time.monotonic() - began < PROOF_S
    while listener.num_refused < len(hostile):
        with contextlib.suppress(OSError):
            hostile[-1].send(b"x")
        listener.accept(0.1)
        assert time.monotonic() - began < 3 * PROOF_S


def test_a_program_without_the_token_is_not_obeyed(token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lie() -> None:
            sock, _ = server.accept()
            sock.sendall(GREETING + b"n" * NONCE)
            sock.recv(64)
            sock.sendall(b"p" * 32)
            sock.close()

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(LaunchError, match="not scaleproof"):
            dial(f"127.0.0.1:{server.getsockname()[1]}", read_token(token), 1)
        thread.join()


def pair(key: bytes = b"k") -> tuple[socket.socket, Channel]:
    near, other = socket.socketpair()
    OPEN.extend((near, other))
    return near, Channel(other, key, dialed=False)


def frame(key: bytes, number: int = 0, direction: bool = True) -> bytes:
    """Return a frame of a valid sender."""
    near, other = socket.socketpair()
    sender = Channel(near, key, dialed=direction)
    for _ in range(number + 1):
        sender.send({"kill": True})
    raw = other.recv(1 << 16)
    near.close()
    other.close()
    return raw[-len(raw) // (number + 1) :]


@pytest.mark.parametrize(
    "raw",
    [
        frame(b"other"),
        frame(b"k", number=1),
        frame(b"k", direction=False),
        struct.pack(">I", LARGEST + 1) + b"x" * 100,
        struct.pack(">I", 0) + b"x" * 100,
        frame(b"k")[:-1] + b"?",
    ],
    ids=["wrong key", "out of order", "reflected", "huge", "empty", "changed"],
)
def test_a_forged_frame_ends_the_connection(raw: bytes) -> None:
    sock, channel = pair()
    sock.sendall(raw)
    with pytest.raises(ChannelError):
        channel.receive()
    sock.close()


def test_a_repeated_frame_ends_the_connection() -> None:
    sock, channel = pair()
    sock.sendall(frame(b"k"))
    assert channel.receive() == [({"kill": True}, b"")]
    sock.sendall(frame(b"k"))
    with pytest.raises(ChannelError):
        channel.receive()
    sock.close()


def test_a_token_that_others_can_read_is_refused(token: Path) -> None:
    assert token.stat().st_mode & 0o077 == 0
    token.chmod(0o644)
    with pytest.raises(LaunchError, match="chmod 600"):
        read_token(token)


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_an_address_has_a_host_and_a_port(text: str) -> None:
    with pytest.raises(LaunchError, match="HOST:PORT"):
        parse_address(text)


def test_an_address_may_be_of_ipv6() -> None:
    assert parse_address("[::1]:80") == ("::1", 80)


def test_dropping_a_pending_connection_does_not_end_the_listener(token: Path) -> None:
    """It became readable in the same round. A port scan must not end a waiting program."""
    listener = Listener(token, "127.0.0.1")
    idle = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(PENDING)]
    OPEN.extend(idle)
    while len(listener._pending) < PENDING:
        listener.accept(0.01)
    idle[0].sendall(b"x")
    OPEN.append(socket.create_connection(("127.0.0.1", listener.port)))
    assert listener.accept(0.5) == []
    assert len(listener._pending) == PENDING
    listener.close()


def test_a_valid_node_that_is_dropped_tries_again(
    monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    monkeypatch.setattr("harness.launch.wire.channel.PENDING", 1)
    listener = Listener(token, "127.0.0.1")
    ours: list[Channel] = []
    secret = read_token(token)
    thread = threading.Thread(
        target=lambda: ours.append(dial(f"127.0.0.1:{listener.port}", secret, 20))
    )
    thread.start()
    while not listener._pending:
        listener._welcome()
    listener._refuse(next(iter(listener._pending)))  # as if another peer connected
    theirs: list[Channel] = []
    while not theirs:
        theirs = listener.accept(0.05)
    thread.join()
    OPEN.extend((*ours, *theirs))
    assert len(ours) == 1
    listener.close()


def test_an_address_with_too_many_connections_is_dropped_first(
    monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    monkeypatch.setattr("harness.launch.wire.channel.PENDING", 4)
    listener = Listener(token)
    honest = socket.create_connection(("127.0.0.2", listener.port), source_address=("127.0.0.2", 0))
    OPEN.append(honest)
    until(lambda: listener.accept(0.01) or listener._pending)
    for _ in range(12):
        OPEN.append(socket.create_connection(("127.0.0.1", listener.port)))
        listener.accept(0.05)
    assert any(p.address.endswith("127.0.0.2") for p in listener._pending.values())
    listener.close()


def test_an_endless_flood_of_connections_does_not_delay_proofs(
    monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    """Proofs are still checked if connections arrive faster than they are accepted."""

    class Flooded:
        taken = 0

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            self.taken += 1
            ours, theirs = socket.socketpair()
            OPEN.extend((ours, theirs))
            return ours, ("10.0.0.1", 1)

    listener = Listener(token, "127.0.0.1")
    OPEN.append(listener._sock)
    flooded = Flooded()
    monkeypatch.setattr(listener, "_sock", flooded)
    listener._welcome()
    assert flooded.taken == GREETED


def test_channels_work_with_more_than_a_thousand_descriptors() -> None:
    """``select`` would not support descriptors above 1023."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this machine allows fewer descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
    try:
        near, other = socket.socketpair()
        ours, theirs = Channel(near, dialed=True), Channel(other, dialed=False)
        OPEN.extend((ours, theirs))
        assert ours.fileno() > 1023
        theirs.send({"here": True})
        assert ours.receive() == [({"here": True}, b"")]
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not socket.has_ipv6, reason="a kernel without IPv6")
@pytest.mark.parametrize("host", ["::1", ""])
def test_nodes_join_over_ipv4_and_ipv6(token: Path, host: str) -> None:
    listener = Listener(token, host)
    for address in ("[::1]", *(["127.0.0.1"] if not host else [])):
        ours: list[Channel] = []
        secret = read_token(token)
        thread = threading.Thread(
            target=lambda a=address, o=ours, s=secret: o.append(dial(f"{a}:{listener.port}", s, 5))
        )
        thread.start()
        theirs: list[Channel] = []
        while not theirs:
            theirs = listener.accept(0.05)
        thread.join()
        OPEN.extend((*ours, *theirs))
        assert ours[0].address() == address.strip("[]")
    listener.close()


def test_a_message_that_is_nested_too_deeply_is_refused() -> None:
    near, other = socket.socketpair()
    receiver = Channel(other, dialed=False)
    OPEN.extend((near, receiver))
    sender = Channel(near, dialed=True)
    deep = b"[" * 100_000 + b"]" * 100_000
    body = struct.pack(">I", len(deep)) + deep
    from harness.launch.wire.channel import _count, _mac

    mac = _mac(b"", b"d", _count(0), body)
    writing = threading.Thread(
        target=lambda: sender._sock.sendall(struct.pack(">I", len(body)) + mac + body)
    )
    writing.start()
    with pytest.raises(ChannelError, match="not JSON"):
        while True:
            receiver.receive()
    writing.join()


@pytest.mark.parametrize("peers", [500, pytest.param(100_000, marks=pytest.mark.full)])
def test_random_bytes_of_strangers_do_not_end_or_starve_a_program(
    listener: Listener, token: Path, peers: int
) -> None:
    """Each stranger sends random bytes, many as long as a proof, and a valid node still joins."""
    import random

    drawn = random.Random(7)
    joined: list[Channel] = []
    secret = read_token(token)
    honest = threading.Thread(
        target=lambda: joined.append(dial(f"127.0.0.1:{listener.port}", secret, 60))
    )
    proven: list[Channel] = []
    open_: list[socket.socket] = []
    for i in range(peers):
        sock = socket.create_connection(("127.0.0.1", listener.port))
        size = drawn.choice((0, 1, 31, 63, 64, 65, 4096))
        with contextlib.suppress(OSError):
            sock.sendall(drawn.randbytes(size))
        open_.append(sock)
        if len(open_) > 300:
            open_.pop(drawn.randrange(len(open_))).close()
        proven += listener.accept(0)
        if i == peers // 2:
            honest.start()
    while not proven:
        proven += listener.accept(0.05)
    honest.join()
    OPEN.extend((*open_, *joined, *proven))
    assert len(joined) == len(proven) == 1
