"""The control channel: whoever does not hold the token is dropped, and nothing of it is obeyed."""

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
    """Both ends of a connection that was made as a node makes it."""
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
    one, other = socket.socketpair()
    pipe, far = socket.socketpair()
    sender, receiver = Channel(one, b"k", dialed=True), Channel(far, b"k", dialed=False)
    for message, blob in messages:
        sender.send(message, blob)
    one.close()
    raw, got = b"", []
    while data := other.recv(1 << 16):
        raw += data
    for start in range(0, len(raw), cut):
        pipe.sendall(raw[start : start + cut])
        got += receiver.receive() or []
    assert got == messages
    for sock in (other, pipe, far):
        sock.close()


def test_an_idle_connection_is_no_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launch.wire.channel.STALL_S", 0.05)
    one, other = socket.socketpair()
    ours, theirs = Channel(one, dialed=True), Channel(other, dialed=False)
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
    said: list[str] = []

    def try_it() -> None:
        try:
            dial(f"127.0.0.1:{listener.port}", read_token(wrong), 1)
        except LaunchError as error:
            said.append(str(error))

    thread = threading.Thread(target=try_it)
    thread.start()
    while thread.is_alive():
        assert listener.accept(0.05) == []
    assert "another token" in said[0] and "try" in said[0]
    assert listener.num_refused == 1


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 20,
        os.urandom(4096),
        b"\xff" * 64,
        struct.pack(">I", 2**32 - 1) * 40,
    ],
    ids=["http", "noise", "ones", "lengths"],
)
def test_garbage_is_dropped_and_an_honest_node_still_gets_in(
    listener: Listener, token: Path, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as hostile:
        hostile.sendall(said)
        node, program = join(listener, token)
        while listener.num_refused == 0:
            assert listener.accept(0.05) == []
    node.send({"hello": 1})
    assert program.receive() == [({"hello": 1}, b"")]


def test_a_slow_peer_keeps_nobody_waiting_and_is_dropped_in_time(
    listener: Listener, token: Path
) -> None:
    hostile: list[socket.socket] = []
    for _ in range(PENDING + 5):
        hostile.append(socket.create_connection(("127.0.0.1", listener.port)))
        listener.accept(0.01)
    OPEN.extend(hostile)
    assert listener.num_refused >= 5, "no more than so many may stand at the door"
    began = time.monotonic()
    join(listener, token)
    assert time.monotonic() - began < PROOF_S
    while listener.num_refused < len(hostile):
        with contextlib.suppress(OSError):
            hostile[-1].send(b"x")
        listener.accept(0.1)
        assert time.monotonic() - began < 3 * PROOF_S


def test_a_program_that_does_not_hold_the_token_is_not_obeyed(token: Path) -> None:
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
    one, other = socket.socketpair()
    OPEN.extend((one, other))
    return one, Channel(other, key, dialed=False)


def frame(key: bytes, number: int = 0, direction: bool = True) -> bytes:
    """A frame as an honest sender makes it, by having one make it."""
    one, other = socket.socketpair()
    sender = Channel(one, key, dialed=direction)
    for _ in range(number + 1):
        sender.send({"kill": True})
    raw = other.recv(1 << 16)
    one.close()
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
def test_a_frame_that_its_sender_cannot_have_made_ends_the_connection(raw: bytes) -> None:
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
