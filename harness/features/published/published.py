"""Compare measured results with published ones on the same fabric.

published.toml -> PublishedFigure -> a result of the run -> PublishedPlace -> one sentence
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path

from harness.analysis.results import Result, results
from harness.cases import CaseSpec, Device, Precision
from harness.cases.case import Passes
from harness.host.machine import Machine
from harness.record import RunRecord

#: Precisions of the published scaling sweeps, which use neither fp32 nor fp8.
_NARROW = (Precision.AUTOCAST, Precision.BF16, Precision.FP16)
_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A published distribution of a metric.

    ``quantiles`` maps percentages to values, in the metric's SI unit. ``n`` is the number of
    published values and ``what`` describes them. The figure applies to cases whose strategy is in
    ``strategies``, whose model matches the pattern ``models``, which scale in this ``mode``, and
    which are compared with the baseline ``against`` (empty: none). The network must have at least
    ``gbit_s`` Gbit/s for each GPU. An empty ``world`` or ``nodes`` allows any number.
    """

    name: str
    metric: str
    what: str
    gpu: str
    fabric: tuple[str, ...]
    n: int
    quantiles: Mapping[float, float]
    by: str
    date: str
    link: str
    mode: str = "weak"
    strategies: tuple[str, ...] = ()
    against: str = "plain"
    models: str = "decoder-[13]*"
    world: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    gbit_s: float = 0.0

    def about(self, machine: Machine, world_size: int, num_nodes: int) -> bool:
        """Return whether the figure applies to this machine, world size and number of nodes."""
        return (
            machine.gpu is not None
            and "+" not in machine.gpu  # a machine with GPUs of several kinds is not comparable
            and re.search(rf"\b({self.gpu})\b", machine.gpu.lower()) is not None
            and machine.joined(num_nodes) in self.fabric
            and machine.network_gbit_s >= self.gbit_s
            and (not self.world or world_size in self.world)
            and (not self.nodes or num_nodes in self.nodes)
        )

    def of(self, case: CaseSpec, against: str) -> bool:
        """Return whether the figure applies to this case, relative to the baseline ``against``."""
        return (
            case.device is Device.CUDA
            and case.precision in _NARROW
            and case.phase is Passes.TRAIN
            and case.communicate
            and not (case.stand_in or case.stragglers)
            and case.strategy in self.strategies
            and fnmatchcase(f"{case.model}-{case.size}", self.models)
            and case.mode == self.mode
            and against == self.against
        )

    def place(self, value: float) -> str:
        """Return where a value lies, such as ``between the 25th percentile and the median of``."""
        known = sorted(self.quantiles.items())
        if value < known[0][1]:
            return f"below the {_nth(known[0][0])} of"
        for (low, _), (high, above) in pairwise(known):
            if value < above:
                return f"between the {_nth(low)} and the {_nth(high)} of"
        return f"at or above the {_nth(known[-1][0])} of"


def _nth(percent: float) -> str:
    if percent in (0, 50, 100):
        return {0: "lowest", 50: "median", 100: "highest"}[int(percent)]
    return f"{percent:g}th percentile"


@cache
def figures() -> tuple[PublishedFigure, ...]:
    """Return all published figures, in the order of the file."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))["figure"]
    return tuple(map(_figure, tables))


def _figure(table: Mapping[str, object]) -> PublishedFigure:
    fields = dict(table)
    values = fields.pop("values", None)
    if isinstance(values, list):
        fields |= {"n": len(values), "quantiles": _spread(sorted(map(float, values)))}
    else:
        stated = fields["quantiles"]
        assert isinstance(stated, dict)
        fields["quantiles"] = {float(percent): float(v) for percent, v in stated.items()}
    for name in ("fabric", "world", "nodes", "strategies"):
        value = fields.get(name)
        if value is not None:
            fields[name] = tuple(value) if isinstance(value, list) else (value,)
    return PublishedFigure(**fields)  # type: ignore[arg-type]


def _spread(values: list[float]) -> dict[float, float]:
    """Return the lowest and the highest value, and the median of three or more values."""
    spread = {0.0: values[0], 100.0: values[-1]}
    if len(values) > 2:
        spread[50.0] = values[len(values) // 2]
    return spread


@dataclass(frozen=True, kw_only=True)
class PublishedPlace:
    """A measured value with the published figure with which it is compared."""

    case: str
    metric: str
    value: float
    figure: PublishedFigure

    @property
    def sentence(self) -> str:
        """Return ``between the 25th percentile and the median of 33 published ladders on ...``."""
        return f"{self.figure.place(self.value)} {self.figure.n} published {self.figure.what}"


def standings(run: RunRecord) -> list[PublishedPlace]:
    """Return each result with a published figure to compare it with.

    Only results of runs on GPUs have one.
    """
    cases = {arm.case.id: arm.case for plan in run.plans for arm in plan.arms}
    places = {
        (result.case, result.metric, figure.name): PublishedPlace(
            case=result.case, metric=result.metric, value=result.value, figure=figure
        )
        for result in results(run)
        if result.value is not None
        for figure in _comparable(run, result, cases.get(result.case))
    }
    return list(places.values())


def _comparable(run: RunRecord, result: Result, case: CaseSpec | None) -> Iterator[PublishedFigure]:
    for figure in figures():
        if figure.metric != result.metric:
            continue
        if case is None:
            world = _swept_world(run, result.case)
            if world and figure.about(run.machine, sum(world), len(world)):
                yield figure
        elif figure.of(case, result.against) and figure.about(
            run.machine, case.world_size, len(case.nodes)
        ):
            yield figure


def _swept_world(run: RunRecord, name: str) -> tuple[int, ...]:
    """Return the number of ranks on each node in the all-reduce of a fabric result.

    Return an empty tuple if the result is not about an all-reduce.
    """
    worlds = {row.nodes for row in run.fabric if row.operation == "all_reduce"}
    by_name = {f"fabric/all_reduce@{'x'.join(map(str, _shape(world)))}": world for world in worlds}
    return by_name.get(name, ())


def _shape(world: tuple[int, ...]) -> tuple[int, ...]:
    return world if len(world) == 1 else (len(world), world[0])
