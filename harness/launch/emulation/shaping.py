"""Compute the links of an emulated network, and the commands of Linux that shape them.

Rates are enforced by token buckets in the kernel (``tc``). Not every kernel can add delays, so a
network with delays goes through a switch in user space (``switch``). It also enforces the rates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.base.errors import LaunchError
from harness.cases import CaseSpec

#: Rate in Mbit/s up to which TCP's socket buffers are kept small (see ``buffers``).
SLOW_MBIT = 200.0


@dataclass(frozen=True, kw_only=True)
class Links:
    """The rates and delays of the links between emulated nodes.

    ``rates`` is the rate of each node's link in Mbit/s. ``between`` maps pairs of nodes to a lower
    rate of the path between them, in Mbit/s. ``delay_ms`` is the one-way delay from each node to
    each other node, in milliseconds.
    """

    rates: tuple[float, ...]
    between: Mapping[tuple[int, int], float]
    delay_ms: tuple[tuple[float, ...], ...]

    @property
    def delayed(self) -> bool:
        """Whether any path has a delay. Only the switch can add delays."""
        return any(map(any, self.delay_ms))


def links_of(case: CaseSpec, engine: str, usual: Mapping[str, Any], num_nodes: int) -> Links:
    """Return the links that a case requests through the knobs of an engine.

    ``usual`` holds the defaults of the knobs. ``slow_links`` sets rates in Mbit/s: ``1:100`` for
    the link of node 1, ``1-2:100`` for the path between nodes 1 and 2; several are separated by
    commas. ``far_links`` sets one-way delays in milliseconds in the same way.
    """
    knobs = case.knobs_of(engine, usual)
    rate_mbit, delay_ms = float(knobs["rate_mbit"]), float(knobs["delay_ms"])
    rates = [rate_mbit] * num_nodes
    between = {}
    for (node, other), rate in _exceptions(knobs, "slow_links", "100", case.id, engine, num_nodes):
        if other is not None:
            between[node, other] = between[other, node] = rate
        else:
            rates[node] = rate
    delays = [[0.0 if a == b else delay_ms for b in range(num_nodes)] for a in range(num_nodes)]
    for (node, other), delay in _exceptions(knobs, "far_links", "5", case.id, engine, num_nodes):
        for there in range(num_nodes) if other is None else [other]:
            if there != node:
                delays[node][there] = delays[there][node] = delay
    return Links(rates=tuple(rates), between=between, delay_ms=tuple(map(tuple, delays)))


def _exceptions(
    knobs: Mapping[str, Any], knob: str, example: str, where: str, engine: str, num_nodes: int
) -> Iterator[tuple[tuple[int, int | None], float]]:
    """Yield each entry of a knob: (node, None) or (node, node), and its value.

    Raise LaunchError for an entry that is malformed, names an unknown node, or sets a rate of zero.
    """
    for part in filter(None, str(knobs[knob]).split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?:(\d+(?:\.\d+)?)", part)
        named = [int(group) for group in match.groups()[:2] if group is not None] if match else []
        none = knob == "slow_links" and match is not None and float(match[3]) == 0
        if match is None or max(named) >= num_nodes or none:
            raise LaunchError(
                f"{engine}.{knob}: {part!r} is not a link with a value",
                where=where,
                expected=f"1:{example} (node 1's link) or 1-2:{example} (between nodes 1 and 2),"
                f" with nodes from 0 to {num_nodes - 1}",
                fix=f"--set {engine}.{knob}=1:{example}",
            )
        yield (int(match[1]), None if match[2] is None else int(match[2])), float(match[3])


def burst(rate_mbit: float) -> int:
    """Return the size of a token bucket in bytes: 8 ms of the rate, and at least 16 kB.

    A smaller bucket would keep the link below its rate. A burst smaller than the bucket passes
    unshaped, so the bucket must not be larger either.
    """
    return max(int(rate_mbit * 1e6 / 8 * 8e-3), 16_000)


def shape(device: str, rate_mbit: float, slower: Mapping[str, float] | None = None) -> list[str]:
    """Return the lines for ``tc -batch`` that limit the rate of a device.

    Without ``slower`` this is one token bucket. ``slower`` maps addresses to lower rates in Mbit/s,
    and each of them gets a class with its own bucket.
    """
    if not slower:
        bucket = f"rate {rate_mbit:g}mbit burst {burst(rate_mbit)} latency 200ms"
        return [f"qdisc replace dev {device} root handle 1: tbf {bucket}"]
    lines = [f"qdisc replace dev {device} root pfifo"]  # htb cannot replace another htb
    lines.append(f"qdisc replace dev {device} root handle 2: htb default 1")
    for i, (to, rate) in enumerate([("", rate_mbit), *slower.items()], 1):
        bucket = f"rate {rate:g}mbit burst {burst(rate)} cburst {burst(rate)}"
        lines.append(f"class replace dev {device} parent 2: classid 2:{i} htb {bucket}")
        if to:
            match = f"u32 match ip dst {to}/32"
            lines.append(f"filter add dev {device} parent 2: protocol ip {match} flowid 2:{i}")
    return lines


def buffers(rate_mbit: float, delay_ms: float = 0.0) -> Sequence[str]:
    """Return the arguments for ``sysctl`` that set the sizes of TCP's socket buffers.

    On a slow link, large buffers would let megabytes queue ahead of gloo's control messages. With a
    delay, four times the bytes in flight during one round trip must fit.
    """
    under_way = int(rate_mbit * 1e6 / 8 * 2 * delay_ms / 1e3)
    usual, most = (65536, 262144) if rate_mbit <= SLOW_MBIT else (131072, 6291456)
    wide = f"4096 {usual} {max(most, 4 * under_way)}"
    return [f"net.ipv4.tcp_wmem={wide}", f"net.ipv4.tcp_rmem={wide}"]
