"""Hearing the agents of a fleet: what has come of each, and for how long one said nothing."""

import selectors
import time
from collections.abc import Sequence

from harness.base.documents import to_doc
from harness.launch.link import AgentLink, Message
from harness.launch.wire.channel import Channel

TICK_S = 0.2
#: A round of hearing counts as so much silence at most: what we did meanwhile, writing to a slow
#: disk for example, kept nobody from speaking.
ROUND_S = 1.0


class Ear:
    """Listens to links, and counts their silence only while it does.

    Channels stay registered from one round to the next: thousands of them would cost more than what
    they say.
    """

    def __init__(self) -> None:
        self._listened_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._heard: dict[Channel, AgentLink] = {}

    def receive(
        self, links: Sequence[AgentLink], timeout_s: float = TICK_S
    ) -> list[tuple[AgentLink, Message, bytes]]:
        """Receives what comes within that time, from every link."""
        self._attend(links)
        ready = self._selector.select(timeout_s if self._heard else 0)
        now = time.monotonic()
        listened_s = min(now - self._listened_at, ROUND_S)
        self._listened_at = now
        for link in links:
            link.silent_s += listened_s
        return [(key.data, *pair) for key, _ in ready for pair in key.data.receive()]

    def _attend(self, links: Sequence[AgentLink]) -> None:
        """Listen to these links, and to no others."""
        wanted = {link.channel: link for link in links if link.channel is not None}
        for channel in [c for c in self._heard if wanted.get(c) is not self._heard[c]]:
            self._selector.unregister(channel)  # it is found though it may be closed
            del self._heard[channel]
        for channel, link in wanted.items():
            if channel not in self._heard:
                self._selector.register(channel, selectors.EVENT_READ, link)
                self._heard[channel] = link


def unreachable(ear: Ear, links: Sequence[AgentLink], within_s: float) -> tuple[int, ...]:
    """Nodes that fewer than half of the others can connect to."""
    alive = [x for x in links if x.channel is not None and x.about is not None]
    doors = [to_doc(x.about.door) for x in alive if x.about is not None]
    for link in alive:
        link.send({"reach": doors})
    answers: dict[int, list[bool]] = {}
    deadline = time.monotonic() + within_s
    while len(answers) < sum(x.channel is not None for x in alive):
        if time.monotonic() > deadline:
            break
        for link, message, _ in ear.receive(alive):
            if "reached" in message:
                answers[link.node] = message["reached"]
    unreached = []
    for i, link in enumerate(alive):
        heard = [answer[i] for node, answer in answers.items() if node != link.node]
        if heard and 2 * sum(heard) < len(heard) + (len(heard) == 1):
            unreached.append(link.node)
    return tuple(unreached)
