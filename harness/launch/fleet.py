"""The fleet: an agent on each node, and launches of worlds that span all of them.

The engine starts the agents, which connect to the main program. For each launch, every agent
receives the numbers of the ranks to start. The agent of rank 0 opens the rendezvous store. The main
program passes the store's address to the other agents. The agents send heartbeats back. The first
failure on any node ends the world on all nodes.
"""

import dataclasses
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError, RetryableError
from harness.cases import CaseSpec, Compiled
from harness.host.surroundings import surroundings
from harness.launch.agents import (
    TICK_S,
    Again,
    AgentLink,
    AgentMonitor,
    agree,
    clear,
    fit,
    joined,
    mend,
    unreachable,
)
from harness.launch.cluster import WAITS
from harness.launch.engine import Ended, Job, State, Tick, Watch, Where
from harness.launch.running import Running
from harness.launch.wire.channel import Listener
from harness.launch.wire.messages import HowFar, LaunchSpec, Node, Share
from harness.record import Described

#: A function that starts the agents. It returns their job, and the listener if they connect to one.
Begin: TypeAlias = Callable[[], tuple[Job, Listener | None]]
#: Minimum time in seconds between two requests to a scheduler for the state of a job.
POLL_S = 1.0
#: Ratio of the pause between two checks of all connected agents to the duration of one check. It
#: limits the fraction of time that checks take if there are thousands of agents.
PAUSES = 20
#: Maximum number of nodes, or ranges of nodes, that a message lists.
SHOWN = 8
#: File descriptors that this program needs in addition to one for each agent.
DESCRIPTORS = 512
#: Seconds to wait for the description of a case. It is longer than the time after which the agent
#: itself reports that the case's files do not answer (60 s).
DESCRIBE_S = 90.0
#: Seconds to wait for the examination of a node. On a busy node, the examination repeats its
#: measurement of the load for several seconds.
EXAMINE_S = 60.0


class Fleet:
    """The agents of one run.

    ``start`` starts the agents without waiting for them. Methods that need agents wait until all
    agents are ready.
    """

    def __init__(self, begin: Begin, where: Where, again: Again | None = None) -> None:
        self._begin = begin
        self._where = where
        self._again = again
        self.notes = list[str]()
        per_rank = where.settings.get("tasks") == "rank"
        self.num_agents = sum(where.nodes) if per_rank else len(where.nodes)
        self.queued_s = 0.0
        self._said = (State.PENDING, "")
        self._polled_at = 0.0
        self._job: Job | None = None
        self._listener: Listener | None = None
        self._links: list[AgentLink] = []
        self._met = False
        waits = {**WAITS, **where.settings}
        self._join_s, self._queue_s, self._lost_s = (
            float(waits[name]) for name in ("join_s", "queue_s", "lost_s")
        )
        self._ear = AgentMonitor()
        _allow(self.num_agents + DESCRIPTORS)

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Take the settings from a cluster file, for an engine that is itself a fleet."""

    def start(self) -> None:
        """Start the agents, and return without waiting until they have imported torch."""
        if self._job is None:
            self._job, self._listener = self._begin()
            self._polled_at = 0.0
            channels = self._job.channels()
            self._links = [
                AgentLink(node=node, channel=channels[node]) for node in sorted(channels)
            ]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The facts about each agent's machine; waits until every agent is ready."""
        self.ready()
        return tuple(link.about for link in self._links if link.about is not None)

    def ready(self, watch: Watch = lambda here, wanted, says: None) -> None:
        """Wait until every node's agent has imported torch.

        If an agent is lost before that, all agents are started once more. Time in a scheduler's
        queue does not count towards ``join_s``. Raise LaunchError with the missing nodes.
        """
        self.start()
        try:
            if self._met:
                self._mend(watch)
            else:
                self._meet_twice(watch)
        except BaseException:  # also Ctrl-C during the wait in a queue, so that no job is left
            self.close()
            raise

    def _meet_twice(self, watch: Watch) -> None:
        """Wait for all agents; if one is lost meanwhile, start all of them once more."""
        try:
            self._meet(watch)
        except RetryableError as error:
            self.close()
            self.start()
            self._meet(watch)
            self.notes.append(f"{error.what}; all agents were started once more")

    def _meet(self, watch: Watch) -> None:
        """Wait until every agent has reported its facts, then number and check the agents."""
        since = looked_at = time.monotonic()
        pause_s = TICK_S
        # With thousands of agents, only those that have not reported are checked in every round.
        silent = list(self._links)
        # These agents have a separate monitor. With a single monitor, each switch between checking
        # them and checking all agents would register all channels again.
        by_newcomers = AgentMonitor()
        while len(self._links) < self.num_agents or silent:
            silent += joined(self._listener, self._links, TICK_S)
            within_s = TICK_S if self._listener is None else 0
            began = time.monotonic()
            everyone = began - looked_at > pause_s
            heard = self._links if everyone else silent
            ear = self._ear if everyone else by_newcomers
            for link, message, _ in ear.receive(heard, within_s):
                if "hello" in message:
                    link.about = from_doc(Node, message["hello"])
            if everyone:  # the longer a check of all agents takes, the longer is the pause after it
                looked_at = time.monotonic()
                pause_s = max(TICK_S, PAUSES * (looked_at - began))
            silent = [link for link in silent if link.about is None]
            state, says = self._poll()
            if state is State.PENDING:
                self.queued_s += time.monotonic() - since
                since = time.monotonic()
            if state is State.PENDING and self._queue_s and self.queued_s > self._queue_s:
                raise LaunchError(
                    f"the job is still in the queue after {self.queued_s:.0f} s: {says}",
                    where="engine",
                    expected=f"the job leaves the queue within queue_s = {self._queue_s:g} s",
                    fix="squeue --start",
                )
            lost = [link for link in heard if link.lost]
            if lost:  # poll again: the last line of the lost agent's output may be written by now
                self._polled_at = 0.0
                _, says = self._poll()
            late = time.monotonic() - since > self._join_s
            if lost or state is State.ENDED or late:
                passed = f"{self._join_s:.0f} s have passed" if late else ""
                error = RetryableError if lost else LaunchError
                raise absent(self._links, self.num_agents, says or passed, error)
            watch(len(self._links) - len(silent), self.num_agents, says)
        if self._listener is not None:  # no more agents are expected
            self._listener.close()
            self._listener = None
            agree(self._links, self._where, self.num_agents)
        fit(self._links, self._where)
        self._met = True

    def _mend(self, watch: Watch) -> None:
        """Start a new agent for each lost one, and leave out nodes whose agent does not come back.

        The other agents and a scheduler's allocation are kept. If the engine cannot start a single
        agent, all agents are started again.
        """
        if not any(link.lost and not link.left_out for link in self._links):
            return
        if self._again is None or self.num_agents != len(self._where.nodes):
            self.close()
            self.start()
            self._meet(watch)
            return
        assert self._job is not None
        self.notes += mend(
            self._links, self._job, self._again, self._where, self._ear, self._join_s, watch
        )

    def _poll(self) -> tuple[State, str]:
        """Return the state of the job, which is requested at most once every ``POLL_S``."""
        assert self._job is not None
        if time.monotonic() - self._polled_at > POLL_S:
            self._said = self._job.poll()
            self._polled_at = time.monotonic()
        return self._said

    def describe(self, requests: Sequence[tuple[CaseSpec, Mapping[str, str]]]) -> list[Described]:
        """Ask the first available node to describe each case, without launching anything."""
        self.ready()
        asked = [{"case": to_doc(c), "files": dict(f)} for c, f in requests]
        first = [link for link in self._links if not link.left_out][:1]
        (answer,) = self._ask(first, {"describe": asked}, DESCRIBE_S * max(1, len(requests)))
        return [from_doc(Described, d) for d in answer["described"]]

    def examine(self) -> list[tuple[Node, Json]]:
        """Return (node, its facts and findings) of every agent that is in use, in their order."""
        self.ready()
        present = [link for link in self._links if not link.left_out]
        answers = self._ask(present, {"examine": True}, EXAMINE_S)
        abouts = [link.about for link in present if link.about is not None]
        return [(node, answer["examined"]) for node, answer in zip(abouts, answers, strict=True)]

    def tell(self, standing: HowFar) -> None:
        """Send the progress of the run to the first agent, which may report it to a scheduler.

        There is no answer.
        """
        present = [link for link in self._links if not (link.lost or link.left_out)]
        for link in present[:1]:
            link.send({"standing": to_doc(standing)})

    def _ask(self, links: Sequence[AgentLink], asked: Json, within_s: float) -> list[Json]:
        """Send a request to each of these agents, and return their answers in the same order.

        Raise LaunchError if an agent is lost, or does not answer within ``within_s`` seconds.
        """
        for link in links:
            link.send(asked)
        answers: dict[int, Json] = {}
        deadline = time.monotonic() + within_s
        while silent := [link for link in links if link.node not in answers]:
            answers |= {link.node: message for link, message, _ in self._ear.receive(self._links)}
            if time.monotonic() > deadline and silent[0].node not in answers:
                silent[0].lose(f"its agent does not answer: {', '.join(asked)}")
            self._check_alive(links)
        return [answers[link.node] for link in links]

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start a world and wait until it is over; KeyboardInterrupt ends the world first."""
        return self.launch_together([spec], tick)[0]

    def launch_together(self, specs: Sequence[LaunchSpec], tick: Tick) -> list[Ended]:
        """Start worlds at the same time, on separate nodes or devices, and wait for all of them."""
        self.ready()
        if any(spec.case.compiled is Compiled.INDUCTOR for spec in specs):
            self._load_compiler()
        assert self._job is not None
        for spec in specs:
            self._job.prepare(spec)
        seated = seats(specs, self._links)
        worlds = [
            Running(spec, shares(spec, self._links, self._where, hosts), self._lost_s)
            for spec, hosts in zip(specs, seated, strict=True)
        ]
        try:
            while not all(world.over for world in worlds):
                self._attend(worlds)
                tick(min(world.step for world in worlds))
        # Also if a tick fails: no message of this launch may be left for the next one.
        except BaseException:
            for world in worlds:
                world.end()
            while not all(world.over for world in worlds):
                self._attend(worlds)
            raise
        ended = [_ended(world, self._ear, self._lost_s) for world in worlds]
        clear(self._links, self._job)
        return ended

    def _load_compiler(self) -> None:
        """Ask agents to import Inductor, so that their ranks do not have to.

        A rank sends no heartbeats during the import and could miss its deadline.
        """
        fresh = [link for link in self._links if not (link.compiles or link.left_out)]
        self._ask(fresh, {"preload": "inductor"}, DESCRIBE_S)
        for link in fresh:
            link.compiles = True

    def _attend(self, worlds: Sequence[Running]) -> None:
        """Process the messages that have arrived, and update every world.

        Raise LaunchError if the agents have been released meanwhile.
        """
        if self._job is None:
            raise LaunchError("the agents were released while a world was running", where="engine")
        for link, message, blob in self._ear.receive(self._links):
            for world in worlds:
                world.hear(link, message, blob)
        for world in worlds:
            world.watch()

    def _check_alive(self, links: Sequence[AgentLink]) -> None:
        """Raise LaunchError if one of these agents is lost.

        The message includes the engine's text about its job.
        """
        if lost := [link for link in links if link.lost]:
            says = self._job.poll()[1] if self._job is not None else ""
            reason = "; ".join(f"{x.name}: {x.lost}" for x in lost) + (f" ({says})" if says else "")
            self.close()
            raise LaunchError(
                reason,
                where="engine",
                expected=f"every node can run: python -c 'import torch, harness'{surroundings()}",
                fix="scaleproof check",
            )

    def close(self) -> None:
        """Close the connections to the agents, and end the job that started them."""
        for link in self._links:
            if link.channel is not None:
                link.channel.close()
        if self._listener is not None:
            self._listener.close()
        if self._job is not None:
            self._job.stop()
        self._job = None
        self._listener = None
        self._links = []
        self._met = False


def _ended(world: Running, ear: AgentMonitor, lost_s: float) -> Ended:
    """Return how a world ended.

    If the world failed on several nodes, also find the nodes that other nodes cannot reach.
    """
    agents = "+".join(link.about.agent for link in world.links if link.about is not None)
    asked = world.failing and len(world.links) > 1
    return Ended(
        ranks=world.ends(),
        agent=agents,
        noticed_at=world.noticed_at,
        lasted_s=world.lasted_s,
        unreachable=unreachable(ear, world.links, lost_s) if asked else (),
    )


def absent(
    links: Sequence[AgentLink], wanted: int, says: str, kind: type[LaunchError] = LaunchError
) -> LaunchError:
    """Return an error that names the missing and the lost agents.

    ``wanted`` is the number of expected agents, ``says`` is the engine's text about its job, and
    ``kind`` is the type of the error.
    """
    numbers = [link.about.order for link in links if link.about is not None]
    missing = sorted(set(range(wanted)) - {*numbers}) if -1 not in numbers else []
    whose = f" (missing: nodes {ranges(missing)})" if missing else ""
    lost = [f"{link.name}: {link.lost}" for link in links if link.lost]
    lost = [*lost[:SHOWN], *([f"{len(lost) - SHOWN} more"] if len(lost) > SHOWN else [])]
    return kind(
        f"{len(numbers)} of {wanted} agents are ready{whose}: "
        + "; ".join(lost or [says])
        + (f" ({says})" if lost and says else ""),
        where="engine",
        expected=f"every node can run: python -c 'import torch, harness'{surroundings()}",
        fix="scaleproof check",
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as sorted ranges, such as ``0-3, 7, 9-12``, with at most ``SHOWN`` ranges."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    spans = [f"{a}-{b}" if b > a else str(a) for a, b in runs[:SHOWN]]
    unshown = sum(b - a + 1 for a, b in runs[SHOWN:])
    return ", ".join(spans) + (f" and {unshown} more" if unshown else "")


def _allow(descriptors: int) -> None:
    """Raise the limit of open files to ``descriptors``, or to the hard limit of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        allowed = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def seats(specs: Sequence[LaunchSpec], links: Sequence[AgentLink]) -> list[tuple[int, ...]]:
    """Return the nodes of each world.

    These are the nodes that the world names, but a spare node replaces each node that is left out.
    Raise LaunchError if there are not enough spare nodes.
    """
    wanted = [spec.hosts or tuple(range(len(spec.case.nodes))) for spec in specs]
    out_of = {link.node: link for link in links if link.left_out}
    if not out_of:
        return wanted
    taken = {node for hosts in wanted for node in hosts}
    spare = [x.node for x in links if not x.left_out and x.node not in taken]
    stands_in: dict[int, int] = {}
    for node in sorted(taken & out_of.keys()):
        if not spare:
            raise LaunchError(
                f"{out_of[node].name} is lost ({out_of[node].lost}), and no other node is free",
                where="engine",
                expected=f"{len(taken)} nodes whose agents are connected",
                fix="scaleproof check",
            )
        stands_in[node] = spare.pop(0)
    return [tuple(stands_in.get(node, node) for node in hosts) for hosts in wanted]


def shares(
    spec: LaunchSpec, links: Sequence[AgentLink], where: Where, hosts: Sequence[int] = ()
) -> list[tuple[AgentLink, Share]]:
    """Return the agents of a world, each with the ranks that it starts.

    If there is an agent for each rank, every agent starts one rank. If several worlds run
    concurrently (``spec.devices`` is set), each rank gets the cores that its devices would have in
    the largest world. Therefore no two of these worlds use the same core, even if all nodes are
    emulated on one machine.
    """
    sizes, per_rank = spec.case.nodes, spec.case.devices_per_rank
    chosen = hosts or spec.hosts or tuple(range(len(sizes)))
    devices = spec.devices or (0,) * len(sizes)
    by_node = len(links) == len(where.nodes)
    starts = [sum(where.nodes[:n]) for n in range(len(where.nodes))]
    shared = []
    first = 0
    for node, device, count in zip(chosen, devices, sizes, strict=True):
        place = Share(
            node=node,
            first=first,
            count=count,
            node_first=first,
            node_count=count,
            device=device,
            core=starts[node] + device if spec.devices else first * per_rank,
            agents=1 if by_node else where.nodes[node],
        )
        if by_node:
            shared.append((links[node], place))
        else:
            for i in range(count):
                share = dataclasses.replace(place, first=first + i, count=1)
                shared.append((links[starts[node] + device + i], share))
        first += count
    return shared
