"""Rules that judge nothing: patterns that match no case there is, bounds that decide nothing.

Such a rule would stand in its file, look like a requirement, and never fail.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING

from harness.base.documents import Json
from harness.base.errors import meant
from harness.cases import metrics
from harness.cases.case import SCRIPT, Mode
from harness.cases.catalogue import Catalogue
from harness.cases.metrics import Form

if TYPE_CHECKING:
    from harness.cases.rules import Threshold

#: What two rules must have in common to be about the same values.
_SAME = (
    "case", "metric", "mode", "baseline", "device", "world", "nodes", "hardware", "fabric",
    "gbit_s", "statistic",
)  # fmt: skip


def bounds(rule: Mapping[str, Json]) -> Iterator[tuple[str, str, str]]:
    """(key, what is wrong, what would be right) of bounds that decide nothing."""
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
            yield key, f"{message} is no bound", "a finite number"
        elif metric.form is Form.GATE and (key, bound) != ("at_least", 1):
            yield key, f"{message}: a control is caught or it is not", "at_least = 1"
        elif metric.form is not Form.GATE and (below if least else above):
            yield key, f"{message}: no {rule['metric']} can miss that", _range(low, high)
        elif metric.form is not Form.GATE and (below or above):
            yield key, f"{message}: no {rule['metric']} can meet that", _range(low, high)


def _range(low: float, high: float) -> str:
    if math.isinf(low):
        return f"a number below {high:g}"
    return f"a number above {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"


def unknown(rule: Mapping[str, Json], catalogue: Catalogue) -> tuple[str, str] | None:
    """Why a rule's pattern can match no case there is, and what may be meant; None if it can."""
    if metrics.metric(rule["metric"]).measured_by:
        return None  # sweeps and trials have names of their own
    pattern = str(rule["case"])
    names = families(catalogue)
    if next(_matching(pattern, names), None) is not None:
        return None
    family = _family(pattern)
    message = f"case = {pattern!r} matches no strategy, model and mode there is"
    return message, meant(family, names) or "scaleproof list shows what there is"


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The families that a rule's pattern is about, whatever it says of world and knobs."""
    return list(_matching(pattern, names))


def _matching(pattern: str, names: Sequence[str]) -> Iterator[str]:
    """Yields the matching rules as they are found: most rules match a family soon."""
    family = _family(pattern)
    if re.fullmatch(rf"{SCRIPT}/[^/]+-(own|\*)/(weak|strong|\*)", family):
        yield family  # a user's script is called as its file is
    else:
        either = re.compile(f"{translate(family)}|{translate(pattern)}").match
        yield from filter(either, names)


def _family(pattern: str) -> str:
    named = re.match(r"[^/]*/[^/]*/(?:weak|strong)", pattern)
    return named[0] if named else pattern.partition("@")[0].partition("+")[0]


@functools.lru_cache(maxsize=1)
def families(catalogue: Catalogue) -> Sequence[str]:
    """Every family of cases that the files of a catalogue make."""
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
    """Places of two rules on the same values of which one must fail."""
    for i, rule in enumerate(rules):
        for j, b in enumerate(rules[:i]):
            if any(_listed(rule.get(key)) != _listed(b.get(key)) for key in _SAME):
                continue
            least = max(r.get("at_least", -math.inf) for r in (rule, b))
            if least > min(r.get("at_most", math.inf) for r in (rule, b)):
                yield i, j


def _listed(value: Json) -> frozenset[Json]:
    """A value or several, in whatever order they stand."""
    return frozenset(value if isinstance(value, list) else [value])


def implied(rules: Sequence[Threshold]) -> Iterator[tuple[Threshold, Threshold]]:
    """Rules that cannot fail while another one holds, and that other one.

    A speedup is an efficiency, too, where the number of ranks, or of nodes, is stated.
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
    """The least share of ideal scaling that a rule asks for; None where that can't be said."""
    if rule.at_least is None or rule.metric not in ("efficiency", "speedup"):
        return None
    if rule.metric == "efficiency":
        return rule.at_least
    sizes = rule.nodes if rule.baseline == "one_node" else rule.world
    alone = rule.baseline in ("plain", "wrapped", "one_node")
    return rule.at_least / sizes[0] if alone and sizes and len(sizes) == 1 else None
