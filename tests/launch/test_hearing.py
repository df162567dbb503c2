"""Silence of agents is counted separately for each of them, and only while the program listens."""

from __future__ import annotations

import socket

import pytest

from harness.launch import agents
from harness.launch.agents import AgentLink, AgentMonitor
from harness.launch.fleet import absent, ranges
from harness.launch.wire.channel import Channel


class Clock:
    """A clock that only advances if it is set."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_stall_of_the_program_is_no_silence_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall of the program, such as a write to a slow disk, must not count as agents' silence."""
    clock = Clock()
    monkeypatch.setattr(agents, "time", clock)
    ours, theirs = socket.socketpair()
    link, other = (
        AgentLink(node=0, channel=Channel(ours, dialed=False)),
        Channel(theirs, dialed=True),
    )
    ear = AgentMonitor()
    clock.now += 60.0  # the program waits for a file server
    ear.receive([link], 0)
    assert link.silent_s == agents.ROUND_S
    for _ in range(30):
        clock.now += 0.2
        ear.receive([link], 0)
    assert link.silent_s == pytest.approx(7.0), "an agent that says nothing is lost all the same"
    other.send({"beats": []})
    assert ear.receive([link], 1.0)[0][1] == {"beats": []}
    assert link.silent_s == 0.0
    ours.close()
    other.close()


def test_lists_of_nodes_fit_in_a_line_at_any_size() -> None:
    assert ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert ranges(range(0, 4096, 2)).endswith("and 2040 more")
    sentence = str(absent([], 4096, "job 7"))
    assert "0 of 4096" in sentence and "nodes 0-4095" in sentence and len(sentence) < 400
