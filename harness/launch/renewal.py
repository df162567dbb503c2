"""Renewal: another agent in the place of one that was lost, on its node, while the others stay."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from harness.base.documents import from_doc
from harness.base.errors import LaunchError
from harness.launch.engine import Job, State, Watch, Where
from harness.launch.hearing import TICK_S, Ear
from harness.launch.link import AgentLink
from harness.launch.roll_call import examine
from harness.launch.wire.channel import Channel, Listener
from harness.launch.wire.messages import Node

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
    ear: Ear,
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
    link: AgentLink, job: Job, again: Again, ear: Ear, within_s: float, watch: Callable[[str], None]
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
