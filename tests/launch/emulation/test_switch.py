"""The switch of emulated networks, tested on pipes with a simulated clock."""

from __future__ import annotations

import contextlib
import os

import pytest

from harness.launch.emulation.switch import Switch

SIZE = 1000


def packet(to: int, size: int) -> bytes:
    """Return a padded IPv4 header with only a destination."""
    return bytes([0x45, *[0] * 15, 10, 77, 0, to + 1]).ljust(size, b"x")


@pytest.fixture
def ends() -> list[tuple[int, int]]:
    return [os.pipe() for _ in range(3)]


def make(ends: list[tuple[int, int]], **changes: object) -> Switch:
    usual = dict(rates=[1e6] * 3, between={}, delay_s=[[0.0] * 3] * 3)
    return Switch([write for _, write in ends], **{**usual, **changes})  # type: ignore[arg-type]


def arrivals(switch: Switch, ends: list[tuple[int, int]]) -> dict[int, list[float]]:
    """Return the arrival times of the packets at each end."""
    out: dict[int, list[float]] = {i: [] for i in range(len(ends))}
    for read, _ in ends:
        os.set_blocking(read, False)
    now = 0.0
    while True:
        wait_s = switch.deliver(now)
        for i, (read, _) in enumerate(ends):
            with contextlib.suppress(BlockingIOError):
                out[i] += [now] * (len(os.read(read, 1 << 16)) // SIZE)
        if wait_s is None:
            return out
        now += wait_s + 1e-9


def test_a_packet_arrives_after_its_size_over_the_rate_and_the_delay(
    ends: list[tuple[int, int]],
) -> None:
    switch = make(ends, delay_s=[[0, 0.01, 0], [0.01, 0, 0], [0, 0, 0]])
    switch.take(0, packet(1, SIZE), now=0.0)
    assert arrivals(switch, ends) == {0: [], 1: [pytest.approx(0.011)], 2: []}


def test_outgoing_and_incoming_packets_share_a_link(ends: list[tuple[int, int]]) -> None:
    switch = make(ends)
    for to in (1, 2):
        switch.take(0, packet(to, SIZE), now=0.0)  # the second waits for the first
    arrived = arrivals(switch, ends)
    assert arrived[1] + arrived[2] == pytest.approx([0.001, 0.002])
    switch = make(ends)
    for source in (0, 1):
        switch.take(source, packet(2, SIZE), now=0.0)
    assert arrivals(switch, ends)[2] == pytest.approx([0.001, 0.002])


def test_distant_or_slow_links_do_not_delay_others(
    ends: list[tuple[int, int]],
) -> None:
    for odd in (dict(between={(0, 1): 1e5}), dict(delay_s=[[0, 0.009, 0], [0] * 3, [0] * 3])):
        switch = make(ends, **odd)
        for source in (0, 2):
            switch.take(source, packet(1, SIZE), now=0.0)
        assert arrivals(switch, ends)[1] == pytest.approx([0.001, 0.010])


@pytest.mark.parametrize("bad", [b"", b"short", bytes([0x60]).ljust(60), packet(9, 100)])
def test_packets_without_a_valid_destination_are_dropped(
    ends: list[tuple[int, int]], bad: bytes
) -> None:
    switch = make(ends)
    switch.take(0, bad, now=0.0)
    assert switch.deliver(1.0) is None
