"""Series: values measured without a plan of launches, by features or by sweeps of the fabric."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.analysis.judging.caveats import unfit_host
from harness.analysis.judging.question import Question, blocker
from harness.cases import Threshold, heads, metrics
from harness.host import devices
from harness.host.fabric import LinkClass
from harness.host.machine import Machine
from harness.record import WORSENED_SINCE, Reason, RunRecord, Status
from harness.record.fabric import Row, Swept, swept

Values = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A measured object and its values by metric, one value for each sweep or trial.

    A threshold's pattern is matched with ``name`` if the pattern names a world, else with
    ``family``. ``first`` holds the values that are judged, and ``again`` the values of the fresh
    set that confirms a FAIL. ``wrong`` is the reason if the values cannot be trusted. ``refused``
    is the reason if they could not be measured. ``operation`` is the collective of a sweep.
    """

    name: str
    family: str
    world_size: int
    num_nodes: int
    first: Values
    again: Values
    wrong: str = ""
    refused: str = ""
    operation: str = ""

    def matched_by(self, rule: Threshold, run: RunRecord) -> bool:
        """Return whether a threshold applies to this series."""
        return (
            rule.metric in self.first
            and fnmatchcase(self.name if "@" in rule.case else self.family, rule.case)
            and rule.applies_on(run.settings.device, self.world_size, self.num_nodes)
            and rule.holds_on(run.machine, self.num_nodes)
        )

    def questions(self, run: RunRecord) -> Iterator[tuple[Question, Threshold | None]]:
        """Yield each threshold that applies, together with its question.

        If ``wrong`` is set, yield a single question without a threshold instead.
        """
        if self.wrong:
            yield self._question(run, next(iter(self.first))), None
            return
        for rule in run.thresholds:
            if self.matched_by(rule, run):
                yield self._question(run, rule.metric), rule

    def _question(self, run: RunRecord, metric: str) -> Question:
        of = metrics.metric(metric)
        directed = of.of_time and not of.share and run.schema >= WORSENED_SINCE
        caveats = [unfit_host(run, directed=directed)]
        if self.wrong:
            caveats.append(blocker(Status.ERROR, Reason.INCORRECT, self.wrong))
        elif not self.first[metric]:
            reason = self.refused or "not measured"
            caveats.append(blocker(Status.SKIP, Reason.UNSUPPORTED, reason))
        return Question(
            name=f"{metric}@{self.name}",
            case=self.name,
            metric=metric,
            against="nothing",
            first=self.first[metric],
            again=self.again[metric],
            caveats=tuple(caveat for caveat in caveats if caveat is not None),
        )


def series(run: RunRecord) -> list[Series]:
    """Return all series of a run: those of the fabric, then those of features."""
    of_features = (course for module in heads.modules("SERIES") for course in module.series(run))
    return [*_fabric(run), *of_features]


def _fabric(run: RunRecord) -> Iterator[Series]:
    """Yield the series of the fabric, which thresholds on ``fabric/OPERATION`` judge."""
    fresh = {
        (sweep.nodes, sweep.network, sweep.operation): sweep
        for sweep in swept(run.fabric, attempt=1)
    }
    for sweep in swept(run.fabric, attempt=0):
        again = fresh.get((sweep.nodes, sweep.network, sweep.operation))
        right = sweep.right and (again is None or again.right)
        link = link_bps(run.machine, sweep.nodes)
        yield Series(
            name=f"fabric/{sweep.operation}@{sweep.world}{sweep.network}",
            family=f"fabric/{sweep.operation}",
            world_size=sum(sweep.nodes),
            num_nodes=len(sweep.nodes),
            operation=sweep.operation,
            first=_values(sweep, link),
            again=_values(again, link) if again else dict.fromkeys(_values(sweep, link), ()),
            wrong="" if right else "a rank got a wrong result, so this network cannot be trusted",
            refused=sweep.refused,
        )


def _values(sweep: Swept, link: float | None) -> dict[str, tuple[float, ...]]:
    """Return every metric of a sweep with one value for each of its launches."""
    bus = sweep.bus_bps()
    return {
        "bus_bandwidth": bus,
        "bus_bandwidth_of_link": tuple(rate / link for rate in bus) if link else (),
        "collective_latency": sweep.latency_s,
        "network_used": tuple(used for row in sweep.largest for used in _network_used(row)),
    }


def link_bps(machine: Machine, nodes: tuple[int, ...]) -> float | None:
    """Return the largest possible rate of an all-reduce in one direction, in B/s, or None.

    In one node it is the rate of a GPU's links. If the links have the kind that the GPU's data
    sheet names, it comes from the data sheet, else from the driver. A slower PCIe slot lowers it.
    In a mesh, only the links to the GPUs in use count. Between nodes it is the rate of a node's
    network cards, or the rate of the links inside the nodes if these are slower. None means that
    the rate is unknown.
    """
    fabric, sheet = machine.fabric, devices.named(machine.gpu)
    if fabric is None:
        return None
    of_sheet = sheet is not None and sheet.link is fabric.link
    link_gb_s = sheet.link_gb_s if sheet is not None and of_sheet else fabric.link_gb_s
    if fabric.link in (LinkClass.NVLINK, LinkClass.XGMI):
        others = (sheet.mesh if sheet is not None and sheet.mesh else machine.num_gpus) - 1
        link_gb_s = link_gb_s * min(1, (min(nodes) - 1) / max(1, others))
    elif fabric.link in (LinkClass.PCIE_PEER, LinkClass.PCIE_HOST) and fabric.link_gb_s:
        link_gb_s = min(link_gb_s, fabric.link_gb_s)
    if len(nodes) == 1:
        return 1e9 * link_gb_s or None
    if min(nodes) == 1:
        inside = math.inf
    elif fabric.link in (LinkClass.NVSWITCH, LinkClass.NVLINK, LinkClass.XGMI):
        inside = 1e9 * link_gb_s
    else:
        return None
    usual = math.inf if sheet is None else 8 * sheet.network_gb_s
    return min(1e9 / 8 * min(machine.network_gbit_s, usual) * min(nodes), inside) or None


def _network_used(row: Row) -> Iterator[float]:
    """Yield 1 if NCCL's log shows only RDMA or NVLink connections between nodes, else 0.

    Yield nothing if the log shows no connection between nodes.
    """
    ways = [way.strip() for way in row.transport.removeprefix("nccl ").split(",")]
    between = [way for way in ways if way.startswith("NET/") or "MNNVL" in way]
    if between:
        yield float(not any(way.startswith("NET/Socket") for way in between))
