"""Convert a measured figure of a table, in whatever unit, to seconds per step."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Any

from harness.features.foresight.shapes import Shape


class Unit(StrEnum):
    STEP = "seconds a step"
    TOKENS = "tokens/s"
    SAMPLES = "samples/s"
    FLOPS = "FLOP/s"
    MFU = "MFU"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A figure in SI units. ``per_gpu`` says whether a rate is the rate of one rank."""

    value: float
    unit: Unit
    per_gpu: bool = True

    def step_s(self, shape: Shape, peak_flops: float | None) -> float:
        """Return the seconds of a step of this shape.

        Raise ValueError if MFU is converted and the peak FLOP/s are unknown.
        """
        if self.unit is Unit.STEP:
            return self.value
        rate = self.value * (shape.ranks if self.per_gpu else 1)
        if self.unit is Unit.TOKENS:
            return shape.samples * shape.seq / rate
        if self.unit is Unit.SAMPLES:
            return shape.samples / rate
        if shape.model.params is None:
            # Every model of this name has the same FLOPs, so the unit cancels in an efficiency.
            return shape.samples / rate
        if self.unit is Unit.MFU:
            if peak_flops is None:
                raise ValueError("hardware.peak_tflops_bf16_dense is missing, which mfu needs")
            rate *= peak_flops
        return shape.flops / rate


#: Patterns of field names. The first kind that a row has counts. Named groups hold the scale and
#: what the rate refers to.
_NAMES = (
    (Unit.STEP, r"(step|iteration|iter|batch)(_time)?_(?P<scale>s|ms|sec|seconds)"),
    (Unit.STEP, r"(time|seconds|s)_per_(step|iteration|iter|batch)(_(?P<scale>s|ms))?"),
    (Unit.STEP, r"(?P<rate>steps)_per_s"),
    (Unit.TOKENS, r"(tokens|tok)_(per_)?(?P<mid>gpu_|device_)?(per_)?(s|sec|second)(?P<per>_.*)?"),
    (
        Unit.SAMPLES,
        r"(samples|images|img|sequences|seqs|examples)_(per_)?(?P<mid>gpu_|device_)?(per_)?"
        r"(s|sec|second)(?P<per>_.*)?",
    ),
    (Unit.FLOPS, r"(agg_|aggregate_)?(?P<scale>[tp]flops)(?P<per>_.*)?"),
    (Unit.MFU, r"(mfu|hfu)(_percent|_pct)?"),
)
_SCALES = {"ms": 1e-3, "tflops": 1e12, "pflops": 1e15}
_PER_GPU = re.compile(r"gpu|device|rank|chip|accelerator")


def measured(row: Mapping[str, Any], metric: str) -> list[tuple[str, Measure | None]]:
    """Return the pairs (schedule, figure) of a row.

    The schedule is '' unless the figure is an object with one entry for each schedule. The figure
    is None for a row without one, which is to be predicted. Raise ValueError if the figure is not a
    number, or if the row has only other figures: an efficiency alone does not give a time.
    """
    for unit, written in _NAMES:
        for name, value in row.items():
            if value is None or not (match := re.fullmatch(written, name.lower())):
                continue
            if isinstance(value, Mapping):
                return [
                    (str(key), _measure(unit, match, part, metric)) for key, part in value.items()
                ]
            return [("", _measure(unit, match, value, metric))]
    if other := [name for name, value in row.items() if value is not None and is_measure(name)]:
        raise ValueError(
            f"no column is a step time, rate, FLOP/s or MFU, so there are no seconds per step (not"
            f" read: {', '.join(other[:4])})"
        )
    return [("", None)]


def unit_of(name: str, metric: str = "") -> tuple[Unit, bool] | None:
    """Return the unit of a field's figures and whether they are per rank; None for other fields.

    ``metric`` describes the table's figures, for field names that do not mention ranks.
    """
    for unit, written in _NAMES:
        if match := re.fullmatch(written, name.lower()):
            return unit, _per_gpu(unit, match, metric)
    return None


def _looks_measured(name: str) -> bool:
    """Return whether a field looks like a measured figure of a kind that is not supported."""
    shown = name.lower()
    return bool(re.search(r"_(s|ms|sec)$|_per_|efficiency|speedup|^rel$|^gbit", shown)) and not (
        shown.startswith("batch") or shown.endswith("per_node")
    )


def _measure(unit: Unit, match: re.Match[str], value: Any, metric: str) -> Measure:
    if not isinstance(value, Real) or isinstance(value, bool) or not float(value) > 0:
        raise ValueError(f"{match[0]} is {value!r}, expected a number above 0")
    parts = match.groupdict()
    if parts.get("rate"):
        return Measure(value=1 / float(value), unit=unit)
    number = float(value) * _SCALES.get(parts.get("scale") or "", 1.0)
    if unit is Unit.MFU and number > 1.5:
        number /= 100
    return Measure(value=number, unit=unit, per_gpu=_per_gpu(unit, match, metric))


def _per_gpu(unit: Unit, match: re.Match[str], metric: str) -> bool:
    """Return whether a rate is per rank, according to its name or the table's description."""
    if unit in (Unit.MFU, Unit.FLOPS):
        return not match[0].startswith("agg")
    parts = match.groupdict()
    qualifier = f"{parts.get('mid') or ''}{parts.get('per') or ''}" or metric.lower()
    return bool(_PER_GPU.search(qualifier))


def is_measure(name: str) -> bool:
    """Return whether a field is a measured figure."""
    return _looks_measured(name) or any(re.fullmatch(word, name.lower()) for _, word in _NAMES)
