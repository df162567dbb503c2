"""Format the figure of a result, in one form for terminals, pages, Markdown and notebooks."""

from collections.abc import Callable
from functools import partial

from harness.analysis.results import Result
from harness.base.formatting import si
from harness.cases import metrics


def show(result: Result, form: str = ".3f") -> Callable[[float], str]:
    """Return the function that writes one value: with its unit, or as a ratio in this form."""
    if result.absolute:
        return partial(si, unit=metrics.metric(result.metric).unit)
    return f"{{:{form}}}".format


def value(result: Result, form: str = ".3f") -> str:
    """Return the value alone, or an empty text if nothing was measured."""
    return "" if result.value is None else show(result, form)(result.value)


def interval(result: Result, form: str = ".3f") -> str:
    """Return ``[0.35, 1.12] load``: the interval that was judged, and what widened it.

    The text is empty if there is no interval.
    """
    if result.low is None or result.high is None:
        return ""
    write = show(result, form)
    return f"[{write(result.low)}, {write(result.high)}] {result.widened}".rstrip()


def figure(result: Result, form: str = ".3f") -> str:
    """Return ``0.75 [0.35, 1.12] load``, or an empty text if nothing was measured."""
    return f"{value(result, form)} {interval(result, form)}".strip()


def metric(result: Result) -> str:
    """Return the metric with its baseline: ``efficiency v plain``, or ``peak_bytes``."""
    compares = not result.absolute and result.against not in ("gate", "nothing")
    return f"{result.metric} v {result.against}" if compares else result.metric
