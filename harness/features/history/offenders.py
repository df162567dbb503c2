"""Statistics on nodes that were blamed repeatedly, over all runs in a results folder.

    runs -> nodes of each, and which were named slow or ended a launch -> NodeRecord

A run names a slow node by the measurements of that run alone. A node that several runs name is
flagged if it is named significantly more often than the other nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy import stats

from harness.record import LaunchRecord, RunRecord

#: Kinds of failures for which a node may be to blame. Exceptions are not in the list, because the
#: training script causes them.
OF_A_NODE = ("node", "memory", "signal", "hang", "collective")
#: Probability that chance alone flags a node, over all nodes together.
CHANCE = 0.05
#: Smallest number of runs that must blame a node before it is flagged.
AGAIN = 2


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """The runs that blamed a node.

    ``runs`` is the number of runs on the node. ``named`` lists the runs that called it slow, and
    ``broke`` the runs in which a launch failed because of it. ``last`` is the newest run in either
    list. ``chance`` is the probability that an average node is blamed in at least as many runs.
    ``again`` is set if that probability is too small to be chance.
    """

    node: str
    runs: int
    named: tuple[str, ...]
    broke: tuple[str, ...]
    last: str
    chance: float
    again: bool


def records(runs: Sequence[RunRecord]) -> list[NodeRecord]:
    """Return the record of every node of these runs, the most suspicious first."""
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
        # One event is added to the rate of the other nodes. With a rate of zero, a node that is
        # blamed once would be flagged with certainty.
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
    """Yield the node that caused each failed launch of a run, if this is certain."""
    hosts = [machine.host for machine in run.nodes or (run.machine,)]
    for launch in run.launches:
        cause = launch.cause
        if cause is not None and cause.sure and cause.kind in OF_A_NODE:
            yield from _host(launch, cause.node, hosts)


def _host(launch: LaunchRecord, node: int, hosts: Sequence[str]) -> Iterator[str]:
    """Yield the host of a launch's node."""
    number = launch.hosts[node] if node < len(launch.hosts) else node
    if number < len(hosts):
        yield hosts[number]
