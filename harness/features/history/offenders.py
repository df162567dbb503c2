"""Offenders: nodes that were named again and again, over all runs that a results folder has.

    runs -> which nodes each had, which of them were named slow or ended a launch -> NodeRecord

One run names a node by its own evidence. A node that is named in several runs is told apart from
one that had bad luck by how often nodes are named at all.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy import stats

from harness.record import LaunchRecord, RunRecord

#: Causes that a node may be to blame for; an exception is the training's own.
OF_A_NODE = ("node", "memory", "signal", "hang", "collective")
#: Named so often by chance alone in fewer than this share of histories, of all nodes together.
CHANCE = 0.05
#: Runs that have to name a node before it is named again.
AGAIN = 2


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """The runs that spoke of a node. ``named`` are runs that called it slow, ``broke`` those in
    which a launch ended on it; ``last`` the newest of both. ``chance`` that a node like all others
    is named as often; ``again`` if that is too small for luck.
    """

    node: str
    runs: int
    named: tuple[str, ...]
    broke: tuple[str, ...]
    last: str
    chance: float
    again: bool


def records(runs: Sequence[RunRecord]) -> list[NodeRecord]:
    """Every node of these runs, those that were named most often first."""
    ran: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    broke: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        suspects = run.suspects.nodes if run.suspects is not None else ()
        hosts = {machine.host for machine in run.nodes or (run.machine,)}
        ran.update(hosts | {*suspects})
        for host in dict.fromkeys(suspects):
            named.setdefault(host, []).append(run.run)
        for host in dict.fromkeys(_ended_on(run)):
            broke.setdefault(host, []).append(run.run)
    blamed = {host: {*named.get(host, ()), *broke.get(host, ())} for host in ran}
    total = sum(map(len, blamed.values()))
    node_records = []
    for host, times in blamed.items():
        # Of the other nodes, and one time more: what was seen never is no law.
        usual = (total - len(times) + 1) / (ran.total() - ran[host] + 1)
        chance = float(stats.binom.sf(len(times) - 1, ran[host], usual)) if times else 1.0
        node_records.append(
            NodeRecord(
                node=host,
                runs=ran[host],
                named=tuple(named.get(host, ())),
                broke=tuple(broke.get(host, ())),
                last=max(times, default=""),
                chance=chance,
                again=len(times) >= AGAIN and len(ran) > 1 and chance * len(ran) < CHANCE,
            )
        )
    return sorted(node_records, key=lambda record: (not record.again, record.chance, record.node))


def _ended_on(run: RunRecord) -> Iterator[str]:
    """Nodes on which launches of a run ended, where that is sure."""
    hosts = [machine.host for machine in run.nodes or (run.machine,)]
    for launch in run.launches:
        cause = launch.cause
        if cause is not None and cause.sure and cause.kind in OF_A_NODE:
            yield from _host(launch, cause.node, hosts)


def _host(launch: LaunchRecord, node: int, hosts: Sequence[str]) -> Iterator[str]:
    number = launch.hosts[node] if node < len(launch.hosts) else node
    if number < len(hosts):
        yield hosts[number]
