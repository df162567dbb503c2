"""The agents of a fleet: connections, monitoring, numbering and replacement."""

import contextlib
import ipaddress
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError
from harness.cases import Device
from harness.host import accelerators
from harness.host.machine import Machine
from harness.launch.engine import Job, State, Watch, Where
from harness.launch.wire.channel import Channel, ChannelError, Listener
from harness.launch.wire.messages import Node

Message = dict[str, Json]


@dataclass
class AgentLink:
    """One agent and what it has said."""

    node: int
    channel: Channel | None
    about: Node | None = None
    heard_at: float = field(default_factory=time.monotonic)
    silent_s: float = 0.0  # while somebody listened
    lost: str = ""
    left_out: bool = False  # no other agent came in its place
    compiles: bool = False  # it has imported what ranks compile with
    last_words: str = ""  # why it ends, where it could say so

    @property
    def name(self) -> str:
        return f"node {self.node}" + (f" ({self.about.machine.host})" if self.about else "")

    def send(self, message: Message, blob: bytes = b"") -> None:
        """One message; a link that does not take it is lost."""
        if self.channel is None:
            return
        try:
            self.channel.send(message, blob)
        except OSError as error:
            self.lose(f"its agent does not answer: {error.strerror or error}")

    def receive(self) -> list[tuple[Message, bytes]]:
        """Receives what has arrived; nothing where the link is lost meanwhile."""
        assert self.channel is not None
        try:
            messages = self.channel.receive()
        except (OSError, ChannelError, ValueError) as error:
            self.lose(f"its agent sent an invalid message: {error}")
            return []
        if messages is None:
            because = f": {self.last_words}" if self.last_words else ""
            self.lose(f"its agent is gone{because}")
            return []
        self.hear()
        self.last_words = next((str(m["ends"]) for m, _ in messages if "ends" in m), "")
        return messages

    def hear(self) -> None:
        """Note that the agent has been heard of just now."""
        self.heard_at = time.monotonic()
        self.silent_s = 0.0

    def lose(self, why: str) -> None:
        """Nothing more is expected of it."""
        self.lost = self.lost or why
        if self.channel is not None:
            self.channel.close()
            self.channel = None


TICK_S = 0.2
#: A round of hearing counts as so much silence at most: what we did meanwhile, writing to a slow
#: disk for example, kept nobody from speaking.
ROUND_S = 1.0


class AgentMonitor:
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


def unreachable(ear: AgentMonitor, links: Sequence[AgentLink], within_s: float) -> tuple[int, ...]:
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


def joined(listener: Listener | None, links: list[AgentLink], within_s: float) -> list[AgentLink]:
    """Links to the agents that dial in within that time; ``links`` gets them, too."""
    channels = listener.accept(within_s) if listener is not None else []
    new = [AgentLink(node=len(links) + i, channel=channel) for i, channel in enumerate(channels)]
    links += new
    return new


def agree(links: list[AgentLink], where: Where, num_agents: int) -> None:
    """Number the agents, so that ranks lie alike in every run; refuse nodes that are unlike.

    ``num_agents`` are wanted: one for each node, or one for each rank.
    """
    by_node = num_agents == len(where.nodes)
    links.sort(key=_place)
    for number, link in enumerate(links):
        link.node = number
    by_machine: dict[Machine, AgentLink] = {}
    for link in links:
        assert link.about is not None
        examine(link, links[0], by_machine.setdefault(link.about.machine, link), where, by_node)


def examine(
    link: AgentLink, first_link: AgentLink, same: AgentLink, where: Where, by_node: bool = True
) -> None:
    """LaunchError if this agent does not fit the others, or what was asked for.

    ``same`` is the first agent of its machine, which may be itself.
    """
    first = first_link.about
    about = link.about
    assert first is not None and about is not None
    for name in ("scaleproof", "torch"):
        wanted, theirs = first.software.get(name), about.software.get(name)
        if wanted != theirs:
            raise LaunchError(
                f"{link.name} has {name} {theirs}, node 0 has {wanted}",
                expected="the same version on every node",
                fix=f"pip install {name}=={wanted}   # there",
            )
    if same is not link and by_node:
        if not where.settings.get("one_machine"):
            raise LaunchError(
                f"{same.name} and {link.name} are the same machine",
                expected="a machine for each node, or one_machine = true in the cluster file"
                " (results are then labelled emulated)",
                fix="edit the cluster file",
            )
    host = about.door.host
    one_machine = where.settings.get("one_machine")
    if len(where.nodes) > 1 and _is_loopback(host) and not one_machine:
        raise LaunchError(
            f"{link.name} has the address {host}, which other nodes cannot reach",
            expected="an address of the nodes' network",
            fix='listen = "10.0.0.1"   # in the cluster file',
        )


def fit(links: Sequence[AgentLink], where: Where) -> None:
    """LaunchError if a node's torch cannot give each of its ranks a GPU, where they need one."""
    if where.device is not Device.CUDA:
        return
    for link in links:
        assert link.about is not None
        wanted = where.nodes[link.node] if len(links) == len(where.nodes) else 1
        if where.shared_gpu:
            wanted = 1
        cores = link.about.machine.num_cores
        if cores < wanted:
            raise LaunchError(
                f"{link.name} gives its agent {cores} CPU cores for {wanted} ranks with a GPU each",
                expected="a core for each rank at least",
                fix="cpus = 8   # in the cluster file",
            )
        about = link.about
        version = link.about.software.get("torch", "")
        misfit = accelerators.misfit(about.accelerators, about.machine, version, wanted)
        if misfit is not None:
            raise LaunchError(
                f"{link.name}: {misfit.what}", expected=misfit.expected, fix=misfit.fix
            )


def _place(link: AgentLink) -> tuple[object, ...]:
    """Where an agent comes: where it was started as, else by its address."""
    assert link.about is not None
    order = link.about.order
    host = link.about.door.host
    first = (order < 0, order)
    with contextlib.suppress(ValueError):
        return (*first, 0, int(ipaddress.ip_address(host)), link.about.machine.host)
    return (*first, 1, host, link.about.machine.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


#: Starts the agent of a node, on that host, again: its channel, or a listener that it will dial.
Again: TypeAlias = Callable[[Job, int, str], tuple[Channel | None, Listener | None]]


def clear(links: list[AgentLink], job: Job) -> None:
    """End what lost agents have left behind, at once."""
    for link in links:
        if link.lost and not link.left_out:
            job.abandon(link.node)


def mend(
    links: list[AgentLink],
    job: Job,
    again: Again,
    where: Where,
    ear: AgentMonitor,
    within_s: float,
    watch: Watch,
) -> list[str]:
    """Renew every link that was lost, or leave its node out from now on; what there is to tell."""
    notes = []
    for place, link in enumerate(links):
        if not link.lost or link.left_out:
            continue
        num_present = sum(not other.lost for other in links)
        try:
            fresh = _dialed(
                link, job, again, ear, within_s, partial(watch, num_present, len(links))
            )
            if not job.channels():  # who inherits a channel was started here, as the others were
                _fits(fresh, place, links, where)
        except LaunchError as error:
            job.abandon(link.node)
            link.left_out = True
            notes.append(f"{link.name}: {link.lost}; it is left out ({error.what})")
        else:
            links[place] = fresh
            notes.append(f"{link.name}: {link.lost}; its agent was started again")
    return notes


def _fits(fresh: AgentLink, place: int, links: list[AgentLink], where: Where) -> None:
    """LaunchError if the new agent is not what the lost one was to the others."""
    assert fresh.about is not None
    others = [link for i, link in enumerate(links) if i != place and link.about is not None]
    same = (other for other in others if other.about and other.about.machine == fresh.about.machine)
    examine(fresh, links[0] if place else fresh, next(same, fresh), where)


def _dialed(
    link: AgentLink,
    job: Job,
    again: Again,
    ear: AgentMonitor,
    within_s: float,
    watch: Callable[[str], None],
) -> AgentLink:
    """A new agent on the node of one that was lost; LaunchError if it does not come."""
    assert link.about is not None
    channel, listener = again(job, link.node, link.about.machine.host)
    fresh = AgentLink(node=link.node, channel=channel)
    since = time.monotonic()
    try:
        while fresh.about is None:
            if listener is not None and fresh.channel is None:
                fresh.channel = next(iter(listener.accept(TICK_S)), None)
            for _, message, _ in ear.receive([fresh]):
                if "hello" in message:
                    fresh.about = from_doc(Node, message["hello"])
            state, says = job.poll()
            if fresh.lost or state is State.ENDED or time.monotonic() - since > within_s:
                raise LaunchError(fresh.lost or says or f"not back in {within_s:g} s")
            watch(f"{link.name} is started again")
    finally:
        if listener is not None:
            listener.close()
    return fresh
