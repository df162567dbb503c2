"""The links of an emulated network: their rates and delays, and how Linux is told of them.

Rates are token buckets of the kernel (``tc``). It has no delay everywhere, so a network with delays
goes through our own switch (``switch``), which then sees to the rates as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.base.errors import LaunchError
from harness.cases import CaseSpec

#: Rates up to which TCP's own buffers must be small, in Mbit/s.
SLOW_MBIT = 200.0


@dataclass(frozen=True, kw_only=True)
class Links:
    """``rates``: Mbit/s of each node's link; ``between``: of the way between two nodes where that
    is less. ``delay_ms``: from each node to each other, one way.
    """

    rates: tuple[float, ...]
    between: Mapping[tuple[int, int], float]
    delay_ms: tuple[tuple[float, ...], ...]

    @property
    def delayed(self) -> bool:
        return any(map(any, self.delay_ms))


def links_of(case: CaseSpec, engine: str, usual: Mapping[str, Any], num_nodes: int) -> Links:
    """The links that a case's knobs of an engine ask for; ``usual`` where they say nothing.

    ``slow_links`` is ``1:100`` for the rate of a node's link, ``1-2:100`` for the way between two,
    several with commas; ``far_links`` the same for one-way delays in ms.
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
    """Each exception of a knob: (node, None) or (node, node), and its value."""
    for part in filter(None, str(knobs[knob]).split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?:(\d+(?:\.\d+)?)", part)
        named = [int(group) for group in match.groups()[:2] if group is not None] if match else []
        none = knob == "slow_links" and match is not None and float(match[3]) == 0
        if match is None or max(named) >= num_nodes or none:
            raise LaunchError(
                f"{engine}.{knob}: {part!r}",
                where=where,
                expected=f"1:{example} (node 1's link) or 1-2:{example} (between nodes 1 and 2),"
                f" of the {num_nodes} nodes 0 to {num_nodes - 1}",
                fix=f"--set {engine}.{knob}=1:{example}",
            )
        yield (int(match[1]), None if match[2] is None else int(match[2])), float(match[3])


def burst(rate_mbit: float) -> int:
    """8 ms of a rate, in bytes: less chokes it, and bursts below it pass unshaped."""
    return max(int(rate_mbit * 1e6 / 8 * 8e-3), 16_000)


def shape(device: str, rate_mbit: float, slower: Mapping[str, float] | None = None) -> list[str]:
    """Tc's commands: a token bucket; with ways that are ``slower``, a class for each address."""
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
    """Sysctl's arguments: on slow links megabytes would queue ahead of gloo's own messages; on far
    ones four times what is under way must fit.
    """
    under_way = int(rate_mbit * 1e6 / 8 * 2 * delay_ms / 1e3)
    usual, most = (65536, 262144) if rate_mbit <= SLOW_MBIT else (131072, 6291456)
    wide = f"4096 {usual} {max(most, 4 * under_way)}"
    return [f"net.ipv4.tcp_wmem={wide}", f"net.ipv4.tcp_rmem={wide}"]
