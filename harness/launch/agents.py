"""Connect to the agents of a fleet, monitor them, number them, and replace lost ones.

An agent is the process on each node that starts the node's ranks. A fleet is all agents of a run.
"""

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
    """The main program's connection to one agent, and what the agent has reported.

    ``lost`` is the reason why the connection ended, or empty while the agent is connected.
    """

    node: int
    channel: Channel | None
    about: Node | None = None
    heard_at: float = field(default_factory=time.monotonic)
    silent_s: float = 0.0  # time without a message, counted only while the monitor was listening
    lost: str = ""
    left_out: bool = False  # no replacement could be started, so the node is no longer used
    compiles: bool = False  # the agent has imported what its ranks need for torch.compile
    last_words: str = ""  # the reason for its end, if the agent could still send one

    @property
    def name(self) -> str:
        """The node's number, and its host name once the agent has reported it."""
        return f"node {self.node}" + (f" ({self.about.machine.host})" if self.about else "")

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Send one message to the agent, and mark the link as lost if sending fails."""
        if self.channel is None:
            return
        try:
            self.channel.send(message, blob)
        except OSError as error:
            self.lose(f"its agent does not answer: {error.strerror or error}")

    def receive(self) -> list[tuple[Message, bytes]]:
        """Return the messages that have arrived, or none if the link turns out to be lost."""
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
        """Record that a message from the agent has just arrived."""
        self.heard_at = time.monotonic()
        self.silent_s = 0.0

    def lose(self, why: str) -> None:
        """Mark the link as lost for this reason, and close its channel."""
        self.lost = self.lost or why
        if self.channel is not None:
            self.channel.close()
            self.channel = None


#: Seconds that one round of receiving waits for messages.
TICK_S = 0.2
#: The most seconds of silence that one round of receiving adds. The main program may have been busy
#: between two rounds, for example with a slow disk, and an agent must not be blamed for that.
ROUND_S = 1.0


class AgentMonitor:
    """Receive messages from links, and count for how long no message arrives on each link.

    Channels stay registered with the selector from one round to the next, because registering
    thousands of channels costs more than receiving their messages.
    """

    def __init__(self) -> None:
        self._listened_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._heard: dict[Channel, AgentLink] = {}

    def receive(
        self, links: Sequence[AgentLink], timeout_s: float = TICK_S
    ) -> list[tuple[AgentLink, Message, bytes]]:
        """Return (link, message, attached bytes) for what arrives within ``timeout_s``."""
        self._attend(links)
        ready = self._selector.select(timeout_s if self._heard else 0)
        now = time.monotonic()
        listened_s = min(now - self._listened_at, ROUND_S)
        self._listened_at = now
        for link in links:
            link.silent_s += listened_s
        return [(key.data, *pair) for key, _ in ready for pair in key.data.receive()]

    def _attend(self, links: Sequence[AgentLink]) -> None:
        """Register the channels of exactly these links with the selector."""
        wanted = {link.channel: link for link in links if link.channel is not None}
        for channel in [c for c in self._heard if wanted.get(c) is not self._heard[c]]:
            self._selector.unregister(channel)  # this works for a closed channel, too
            del self._heard[channel]
        for channel, link in wanted.items():
            if channel not in self._heard:
                self._selector.register(channel, selectors.EVENT_READ, link)
                self._heard[channel] = link


def unreachable(ear: AgentMonitor, links: Sequence[AgentLink], within_s: float) -> tuple[int, ...]:
    """Return the nodes to which fewer than half of the other nodes can connect.

    Every connected agent is asked to connect to all agents; answers count if they arrive within
    ``within_s`` seconds. If only one other agent answers, a node is unreachable if that agent
    cannot connect to it.
    """
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
    """Return links to the agents that connect within ``within_s``, and append them to ``links``."""
    channels = listener.accept(within_s) if listener is not None else []
    new = [AgentLink(node=len(links) + i, channel=channel) for i, channel in enumerate(channels)]
    links += new
    return new


def agree(links: list[AgentLink], where: Where, num_agents: int) -> None:
    """Number the agents in a reproducible order, and raise LaunchError if their nodes do not match.

    The order makes the placement of ranks identical in every run. ``num_agents`` is the number of
    requested agents: one for each node, or one for each rank.
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
    """Raise LaunchError if this agent does not match the first agent or the requested placement.

    The agents must have the same versions of torch and scaleproof, run on different machines, and
    have addresses that other nodes can reach. ``same`` is the first agent on the machine of
    ``link``, which may be ``link`` itself.
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
                fix=f"pip install {name}=={wanted}   # on that node",
            )
    if same is not link and by_node:
        if not where.settings.get("one_machine"):
            raise LaunchError(
                f"{same.name} and {link.name} are the same machine",
                expected="a separate machine for each node, or one_machine = true in the cluster"
                " file (results are then labelled emulated)",
                fix="edit the cluster file",
            )
    host = about.door.host
    one_machine = where.settings.get("one_machine")
    if len(where.nodes) > 1 and _is_loopback(host) and not one_machine:
        raise LaunchError(
            f"{link.name} has the address {host}, which other nodes cannot reach",
            expected="an address in the network that connects the nodes",
            fix='listen = "10.0.0.1"   # in the cluster file',
        )


def fit(links: Sequence[AgentLink], where: Where) -> None:
    """Raise LaunchError if a node cannot give each of its ranks a GPU and a CPU core.

    Nothing is checked if the ranks run on CPUs. Ranks that may share a GPU need only one.
    """
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
                expected="at least one core for each rank",
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
    """Return the key that orders agents: the order in which they were started, then the address.

    Agents that do not know their order come last.
    """
    assert link.about is not None
    order = link.about.order
    host = link.about.door.host
    first = (order < 0, order)
    with contextlib.suppress(ValueError):
        return (*first, 0, int(ipaddress.ip_address(host)), link.about.machine.host)
    return (*first, 1, host, link.about.machine.host)


def _is_loopback(host: str) -> bool:
    """Return whether an address or host name reaches only the local machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


#: A function that starts the agent of a node again, given the job, the node and its host. It
#: returns the agent's channel, or a listener to which the agent will connect.
Again: TypeAlias = Callable[[Job, int, str], tuple[Channel | None, Listener | None]]


def clear(links: list[AgentLink], job: Job) -> None:
    """End the processes that lost agents left behind, without waiting for a replacement."""
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
    """Start a new agent for every lost link, and exclude a node if its agent does not come back.

    Return one sentence for the record about each lost link.
    """
    notes = []
    for place, link in enumerate(links):
        if not link.lost or link.left_out:
            continue
        num_present = sum(not other.lost for other in links)
        try:
            fresh = _dialed(
                link, job, again, ear, within_s, partial(watch, num_present, len(links))
            )
            # An agent that inherits its channel runs on this machine with the same software as
            # the others, so only agents that connect from elsewhere are examined.
            if not job.channels():
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
    """Raise LaunchError if the new agent does not match the other agents as the lost agent did."""
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
    """Start a new agent on the node of a lost agent, and return its link.

    Raise LaunchError if the agent does not report within ``within_s`` seconds, or if its job ends.
    """
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
                raise LaunchError(fresh.lost or says or f"no answer within {within_s:g} s")
            watch(f"{link.name} is started again")
    finally:
        if listener is not None:
            listener.close()
    return fresh
