"""The roll call: agents that dialed in are numbered, and refused if they do not fit together."""

import contextlib
import ipaddress
from collections.abc import Sequence

from harness.base.errors import LaunchError
from harness.cases import Device
from harness.host import accelerators
from harness.host.machine import Machine
from harness.launch.engine import Where
from harness.launch.link import AgentLink
from harness.launch.wire.channel import Listener


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
