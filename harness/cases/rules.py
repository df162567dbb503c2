"""Thresholds: limits for the metrics of cases, and the checks of a thresholds file."""

from __future__ import annotations

import datetime
import functools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.documents import Json, from_doc
from harness.base.errors import meant
from harness.base.toml import Key, Problems, TomlTable, check_table, keys_of, read_tables
from harness.cases import metrics
from harness.cases.case import SCRIPT, CaseSpec, Device, Mode
from harness.cases.catalogue import Catalogue
from harness.cases.metrics import Form
from harness.cases.plan import BASELINES, Contrast
from harness.host.fabric import LINKS, NAMES, NETWORKS
from harness.host.machine import Machine

if TYPE_CHECKING:
    pass

#: Upper limit of a number of ranks or nodes in a threshold. A larger number is a typing error.
LARGEST = 1_000_000


class Statistic(StrEnum):
    """The statistic that a threshold limits.

    It is the mean of the timed steps, their 95th percentile, or the mean of the worst pair of
    launches.
    """

    MEAN = "mean"
    P95 = "p95"
    WORST = "worst"


class BoundSource(StrEnum):
    """The origin of a bound.

    A ``claimed`` bound alone cannot give a PASS. A ``provisional`` bound can give neither a PASS
    nor a FAIL.
    """

    REQUIREMENT = "requirement"
    PUBLISHED = "published claim"
    MEASURED = "measured"
    DERIVED = "derived"
    CLAIMED = "claimed"
    PROVISIONAL = "provisional"


class Reach(StrEnum):
    """Whether a threshold applied to a result of a run. Reports list those that did not apply."""

    MATCHED = "matched"
    OUT_OF_REACH = "out of reach"
    UNMATCHED = "unmatched"


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """The permission for a threshold to fail.

    ``reason`` states why it may fail, and ``expires`` is the last day (ISO date) of the permission.
    """

    reason: str
    expires: str


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A limit for one metric of some cases.

    ``case`` is a pattern for the family of a case, such as ``ddp/decoder-*/weak``. If the pattern
    names a world, it must match the whole id: ``ddp/decoder-tiny/weak@2cpu``.

    ``world`` and ``nodes`` restrict the threshold to these world sizes and numbers of nodes; if
    empty, it applies to all. ``hardware`` is a pattern for the machine's hardware class.
    ``fingerprint`` lists further ``key=value`` properties of the measurement from which the bound
    was taken. If a run has different properties, its result is only recorded. ``unit`` is the unit
    of the metric. A thresholds file must state it for absolute metrics.

    ``fabric`` lists the links inside a node, or the networks between nodes, to which the threshold
    applies (``harness.host.fabric``); if empty, it applies to all. ``gbit_s`` is the least rate of
    the network per GPU, in Gbit/s, to which the threshold applies.
    """

    name: str
    case: str
    metric: str
    source: BoundSource
    unit: str = "1"
    mode: Mode | None = None
    baseline: str | None = None
    device: Device | None = None
    world: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    hardware: str = "*"
    fabric: tuple[str, ...] = ()
    gbit_s: float | None = None
    statistic: Statistic = Statistic.MEAN
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""
    waiver: Waiver | None = None
    fingerprint: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """The bound as text: ``>= 0.85``, ``<= 0.05`` or ``0.9..1.1``."""
        unit = "" if self.unit in ("1", "x") else f" {self.unit}"
        x = "x" if self.unit == "x" else ""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g}{x}..{self.at_most:g}{x}{unit}"
        if self.at_least is not None:
            return f">={self.at_least:g}{x}{unit}"
        return f"<={self.at_most:g}{x}{unit}"

    def missed_by(self, value: float) -> bool:
        """Return whether a single value does not meet the bound.

        Verdicts compare an interval with the bound instead.
        """
        below = self.at_least is not None and value < self.at_least
        return below or (self.at_most is not None and value > self.at_most)

    def family_matches(self, case: CaseSpec) -> bool:
        """Return whether the threshold applies to the family and mode of this case."""
        name = case.id if "@" in self.case else case.family + case.extras
        return (
            fnmatchcase(name, self.case)
            or (not case.extras and fnmatchcase(case.family, self.case))
        ) and self.mode in (None, case.mode)

    def about(self, case: CaseSpec) -> bool:
        """Return whether the threshold applies to this case and its world, on some hardware."""
        place = self.applies_on(case.device, case.world_size, len(case.nodes))
        return place and self.family_matches(case)

    def applies_on(self, device: str | None, world_size: int, num_nodes: int) -> bool:
        """Return whether the threshold applies to worlds of this size on this kind of device."""
        return (
            self.device in (None, device)
            and (not self.world or world_size in self.world)
            and (not self.nodes or num_nodes in self.nodes)
        )

    def holds_on(self, machine: Machine, num_nodes: int) -> bool:
        """Return whether the threshold applies to worlds on ``num_nodes`` of these machines."""
        return (
            fnmatchcase(machine.hardware_class, self.hardware)
            and (not self.fabric or machine.joined(num_nodes) in self.fabric)
            and (self.gbit_s is None or machine.network_gbit_s >= self.gbit_s)
        )

    def matches(self, case: CaseSpec, contrast: Contrast, machine: Machine) -> bool:
        """Return whether the threshold limits this contrast of this case on this machine."""
        return (
            self.metric == contrast.metric
            and not contrast.curve
            and self.about(case)
            and self.baseline in (None, contrast.against)
            and self.holds_on(machine, len(case.nodes))
        )

    def waived(self, today: datetime.date) -> bool:
        """Return whether the waiver of the threshold is valid today."""
        return self.waiver is not None and today <= datetime.date.fromisoformat(self.waiver.expires)


#: The keys that a table of a thresholds file may have.
KEYS = keys_of(
    Threshold,
    baseline=Key(kind=str, choices=BASELINES),
    waiver=Key(kind=str),
    waiver_expires=Key(kind=datetime.date),
    fabric=Key(kind=str, choices=NAMES, each=True),
    fingerprint=None,
)


def load_thresholds(path: Path, catalogue: Catalogue | None = None) -> tuple[Threshold, ...]:
    """Read a thresholds file.

    Raise ConfigError with the line of each mistake and a suggestion. If a catalogue is given, a
    pattern that matches nothing in it is also a mistake.
    """
    tables, problems = read_tables(
        path, "rule", "--thresholds", f"scaleproof check thresholds {shlex.quote(str(path))}"
    )
    rules = [
        rule_of(table, problems) if check_table(table, KEYS, problems, "rule") else None
        for table in tables
    ]
    lines_of_names: dict[str, int] = {}
    for table in tables:
        name = table.values.get("name")
        if isinstance(name, str):
            if name in lines_of_names:
                line = table.lines.get("name", table.line)
                problems.add(
                    line, f"the rule at line {lines_of_names[name]} already has the name {name!r}"
                )
            lines_of_names.setdefault(name, table.line)
    good = [t for t, rule in zip(tables, rules, strict=False) if rule is not None]
    for table in good if catalogue is not None else ():
        if catalogue is not None and (what := unknown(table.values, catalogue)) is not None:
            problems.add(table.lines.get("case", table.line), *what)
    for this, other in contradictions([t.values for t in good]):
        message = f"contradicts the rule at line {good[other].line}: one of the two must fail"
        problems.add(good[this].line, message, "remove one")
    problems.raise_any()
    return tuple(threshold for threshold in rules if threshold is not None)


def rule_of(table: TomlTable, problems: Problems) -> Threshold | None:
    """Convert a table to a threshold. If it has mistakes, add them to ``problems``, return None."""
    values = table.values
    before = len(problems.found)
    for key, value in values.items():
        if isinstance(value, str) and value != value.strip():
            message = f"{key} = {value!r} has a blank at its end: it would match nothing"
            problems.add(table.lines.get(key, table.line), message, f"{key} = {value.strip()!r}")
    # Verdicts with an empty threshold name count as verdicts without a threshold.
    if values.get("name") == "":
        problems.add(table.lines["name"], "a rule needs a name", 'name = "ddp_weak"')
    if _check_metric(table, problems):
        _check_bounds(table, problems)
    if len(problems.found) > before:
        return None
    doc: dict[str, Json] = {"unit": metrics.metric(values["metric"]).unit}
    doc |= {
        k: [n] if k in ("world", "nodes", "fabric") and not isinstance(n, list) else n
        for k, n in values.items()
    }
    if expires := doc.pop("waiver_expires", None):
        doc["waiver"] = {"reason": values["waiver"], "expires": expires.isoformat()}
    return from_doc(Threshold, doc)


#: Factors of the prefixes of units.
_PREFIXES = {
    "m": 1e-3, "u": 1e-6, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def _in_unit(values: Mapping[str, Json], unit: object, wanted: str) -> Iterator[str]:
    """Yield the bounds of a table, converted to the unit ``wanted``.

    A suggested fix contains these bounds, because correcting only the unit would change the limit.
    """
    factor = _PREFIXES.get(str(unit).removesuffix(wanted)) if wanted != "1" else None
    factor = 0.01 if (unit, wanted) == ("%", "1") else factor
    for key in ("at_least", "at_most"):
        if factor and isinstance(bound := values.get(key), int | float):
            yield f"{key} = {bound * factor:.12g}"


def _check_metric(table: TomlTable, problems: Problems) -> bool:
    """Return whether the metric of a table exists.

    Add a mistake if it does not, if the unit is wrong, or if a baseline or mode is missing.
    """
    name = table.values["metric"]
    try:
        metric = metrics.metric(name)
    except KeyError:
        hint = meant(name, metrics.METRICS) or f"one of {', '.join(metrics.METRICS)}"
        problems.add(table.lines.get("metric", table.line), f"no metric {name!r}", hint)
        return False
    if "unit" not in table.values and metric.form is Form.ABSOLUTE:
        problems.add(table.line, f"a bound on {name} needs its unit", f'unit = "{metric.unit}"')
    elif metric.unit and (unit := table.values.get("unit", metric.unit)) != metric.unit:
        message = f"{name} is in {metric.unit!r}, not {unit!r}"
        hint = ", ".join([*_in_unit(table.values, unit, metric.unit), f'unit = "{metric.unit}"'])
        problems.add(table.lines.get("unit", table.line), message, hint)
    if metric.form is Form.RATIO and "baseline" not in table.values:
        hint = f"baseline = one of {', '.join(BASELINES)}"
        problems.add(table.line, f"{name} needs a baseline", hint)
    if metric.scaling and "mode" not in table.values:
        problems.add(table.line, f"{name} needs a mode", 'mode = "weak" or "strong"')
    return True


def _of_no_fabric(values: Mapping[str, Json]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, mistake, expected) for ``fabric`` and ``gbit_s`` if they match no machine."""
    rate = values.get("gbit_s")
    if rate is not None and not 0 < rate < math.inf:
        yield "gbit_s", f"gbit_s = {rate} is not a rate", "a rate in Gbit/s per GPU, such as 200"
    named = values.get("fabric")
    sizes = values.get("nodes")
    names = [named] if isinstance(named, str) else named
    nodes = [sizes] if isinstance(sizes, int) else sizes
    if names == []:
        yield "fabric", "fabric = [] matches no machine", "at least one name, or no key fabric"
    elif nodes and max(nodes) == 1 and rate is not None:
        yield (
            "gbit_s",
            "gbit_s needs a network between nodes, but nodes = 1",
            "only one of gbit_s and nodes = 1",
        )
    elif names and nodes and min(nodes) > 0:
        inside = LINKS if min(nodes) == 1 else ()
        between = NETWORKS if max(nodes) > 1 else ()
        if not {*names} & {*inside, *between}:
            where = "between nodes" if between else "inside a node"
            yield (
                "fabric",
                f"fabric = {named!r} connects nothing {where}",
                ", ".join(between or inside),
            )


def _check_bounds(table: TomlTable, problems: Problems) -> None:
    """Add a mistake for each bound, world size or waiver that is impossible or incomplete."""
    values = table.values

    def add(key: str, what: str, hint: str = "") -> None:
        problems.add(table.lines.get(key, table.line), what, hint)

    if "at_least" not in values and "at_most" not in values:
        problems.add(table.line, "a rule needs a bound", "add at_least or at_most")
    elif values.get("at_least", -1e300) > values.get("at_most", 1e300):
        add("at_least", "at_least is above at_most: no value can pass")
    for key in ("world", "nodes"):
        sizes = values.get(key)
        listed = [sizes] if isinstance(sizes, int) else sizes
        if listed is not None and not (listed and all(0 < n <= LARGEST for n in listed)):
            add(key, f"{key} = {sizes} matches no run", "whole numbers from 1 on")
    for key, what, right in (*_of_no_fabric(values), *bounds(values)):
        add(key, what, right)
    if ("waiver" in values) != ("waiver_expires" in values):
        add("waiver", "a waiver needs a reason and waiver_expires (a date)")


def reach(
    rule: Threshold,
    judged: list[tuple[CaseSpec, Contrast]],
    machine: Machine,
    device: Device,
    max_world: int,
    max_nodes: int,
) -> tuple[Reach, str]:
    """Return whether a threshold matched one of the judged contrasts.

    If it matched none, also return what it needs that this run or machine does not have.
    """
    if any(rule.matches(case, contrast, machine) for case, contrast in judged):
        return Reach.MATCHED, ""
    if command := metrics.metric(rule.metric).measured_by:
        return Reach.OUT_OF_REACH, f"need {command}"
    if rule.device is not None and rule.device is not device:
        return Reach.OUT_OF_REACH, f"need {rule.device}"
    if rule.nodes and min(rule.nodes) > max_nodes:
        return Reach.OUT_OF_REACH, f"need {min(rule.nodes)} nodes"
    if rule.world and min(rule.world) > max_world:
        return Reach.OUT_OF_REACH, f"need {min(rule.world)} ranks"
    if not fnmatchcase(machine.hardware_class, rule.hardware):
        return Reach.OUT_OF_REACH, f"need hardware {rule.hardware}"
    sizes = rule.nodes or (1, max_nodes)
    if not any(rule.holds_on(machine, num_nodes) for num_nodes in sizes):
        rate = "" if rule.gbit_s is None else f" of {rule.gbit_s:g} Gbit/s a GPU"
        return Reach.OUT_OF_REACH, f"need {' or '.join(rule.fabric) or 'a network'}{rate}"
    return Reach.UNMATCHED, "match no case of this run"


#: Fields that must be equal for two thresholds to limit the same values.
_SAME = (
    "case", "metric", "mode", "baseline", "device", "world", "nodes", "hardware", "fabric",
    "gbit_s", "statistic",
)  # fmt: skip


def bounds(rule: Mapping[str, Json]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, mistake, expected) for each bound that cannot decide anything.

    All possible values meet such a bound, or no possible value meets it.
    """
    metric = metrics.metric(rule["metric"])
    low, high = metric.possible
    for key in ("at_least", "at_most"):
        bound = rule.get(key)
        if bound is None:
            continue
        below, above = bound <= low, bound >= high
        message = f"{key} = {bound:g}"
        least = key == "at_least"
        if not math.isfinite(bound):
            yield key, f"{message} is not a bound", "a finite number"
        elif metric.form is Form.GATE and (key, bound) != ("at_least", 1):
            yield key, f"{message}: a control is either caught or not", "at_least = 1"
        elif metric.form is not Form.GATE and (below if least else above):
            yield key, f"{message}: every possible {rule['metric']} passes", _range(low, high)
        elif metric.form is not Form.GATE and (below or above):
            yield key, f"{message}: no possible {rule['metric']} passes", _range(low, high)


def _range(low: float, high: float) -> str:
    """Return a range of bounds as text."""
    if math.isinf(low):
        return f"a number below {high:g}"
    return f"a number above {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"


def unknown(rule: Mapping[str, Json], catalogue: Catalogue) -> tuple[str, str] | None:
    """Return (mistake, suggestion) if the pattern of a threshold matches no existing case.

    Return None if it matches one.
    """
    if metrics.metric(rule["metric"]).measured_by:
        return None  # names of fabric sweeps and recovery trials are not in the catalogue
    pattern = str(rule["case"])
    names = families(catalogue)
    if next(_matching(pattern, names), None) is not None:
        return None
    family = _family(pattern)
    message = f"case = {pattern!r} matches no existing strategy, model and mode"
    return message, meant(family, names) or "scaleproof run list shows what exists"


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the families that match a pattern, regardless of the world and the knobs in it."""
    return list(_matching(pattern, names))


def _matching(pattern: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the families that match a pattern. Callers often need only the first one."""
    family = _family(pattern)
    if re.fullmatch(rf"{SCRIPT}/[^/]+-(own|\*)/(weak|strong|\*)", family):
        yield family  # any file may be a user's script
    else:
        either = re.compile(f"{translate(family)}|{translate(pattern)}").match
        yield from filter(either, names)


def _family(pattern: str) -> str:
    """Return the part of a pattern that matches families: the part before world and knobs."""
    named = re.match(r"[^/]*/[^/]*/(?:weak|strong)", pattern)
    return named[0] if named else pattern.partition("@")[0].partition("+")[0]


@functools.lru_cache(maxsize=1)
def families(catalogue: Catalogue) -> Sequence[str]:
    """Return every family of cases that the files of a catalogue define."""
    strategies: list[str] = []
    for name, entry in catalogue.entries["strategies"].items():
        codecs = catalogue.entries["compressors"] if entry.supports.compressor else ()
        strategies += [f"{name}:{codec}" for codec in codecs] or [name]
    models = [
        f"{name}-{size}"
        for name, entry in catalogue.entries["models"].items()
        for size in entry.head.get("SIZES", {})
    ]
    return [
        f"{strategy}/{model}/{mode}" for strategy in strategies for model in models for mode in Mode
    ]


def contradictions(rules: Sequence[Mapping[str, Json]]) -> Iterator[tuple[int, int]]:
    """Yield the indices of each pair of thresholds that no value can meet together."""
    for i, rule in enumerate(rules):
        for j, b in enumerate(rules[:i]):
            if any(_listed(rule.get(key)) != _listed(b.get(key)) for key in _SAME):
                continue
            least = max(r.get("at_least", -math.inf) for r in (rule, b))
            if least > min(r.get("at_most", math.inf) for r in (rule, b)):
                yield i, j


def _listed(value: Json) -> frozenset[Json]:
    """Return one value or several values as a set, because their order does not matter."""
    return frozenset(value if isinstance(value, list) else [value])


def implied(rules: Sequence[Threshold]) -> Iterator[tuple[Threshold, Threshold]]:
    """Yield (threshold, other) if the threshold cannot fail while the other one passes.

    Thresholds on speedup and efficiency are compared, too, if they state the number of ranks (or
    nodes).
    """
    alike = [key for key in _SAME if key != "metric"]
    for threshold in rules:
        for rule in rules:
            if threshold is rule or any(
                getattr(threshold, key) != getattr(rule, key) for key in alike
            ):
                continue
            asked = _share(threshold)
            beside = _share(rule)
            if threshold.at_most is not None or asked is None or beside is None:
                continue
            if asked < beside or (asked == beside and rules.index(threshold) > rules.index(rule)):
                yield threshold, rule
                break


def _share(rule: Threshold) -> float | None:
    """Return the least scaling efficiency that a threshold requires, or None if it states none."""
    if rule.at_least is None or rule.metric not in ("efficiency", "speedup"):
        return None
    if rule.metric == "efficiency":
        return rule.at_least
    sizes = rule.nodes if rule.baseline == "one_node" else rule.world
    alone = rule.baseline in ("plain", "wrapped", "one_node")
    return rule.at_least / sizes[0] if alone and sizes and len(sizes) == 1 else None
