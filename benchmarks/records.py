"""Values of a nightly run as benchmarks for asv: lower is better, with one parameter per case.

``scaleproof history add`` writes the same values, with their spread, without asv's runner. These
benchmarks exist so that ``asv check`` and ``asv run`` work as users of asv expect.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path

from harness.features.history import asv_results, ledger
from harness.features.history.night import QUANTITIES, Night, nights

RESULTS = Path(__file__).parents[1] / "results"


@functools.cache
def night() -> Night | None:
    """Return the nightly run of asv's commit, or None if it has none, as the root commit."""
    run = ledger.run_at(RESULTS / asv_results.LEDGER, os.environ.get("ASV_COMMIT", "main"))
    return next((n for n in nights(RESULTS) if n.run == run), None)


def cases(quantity: str) -> list[str]:
    """Return the cases of that nightly run that have this quantity."""
    kept = night()
    cases_named = [c for c, k in kept.cases.items() if quantity in k.values] if kept else []
    return sorted(cases_named) or ["no run was ingested"]


def setup(case: str) -> None:
    """Skip commits without a nightly run, such as the root commit."""
    if night() is None:
        raise NotImplementedError


def track(quantity: str) -> Callable[[str], float]:
    """Return a benchmark for asv of one quantity."""

    def figure(case: str) -> float:
        kept = night()
        assert kept is not None, "see setup"
        values = kept.cases[case].values if case in kept.cases else {}
        return asv_results.shown(quantity, values[quantity]) if quantity in values else math.nan

    figure.__name__ = f"track_{quantity}"
    figure.__doc__ = f"{quantity.replace('_', ' ').capitalize()} of a case in that nightly run."
    figure.unit = asv_results.unit(quantity)  # type: ignore[attr-defined]
    figure.version = asv_results.VERSION  # type: ignore[attr-defined]
    figure.params = [cases(quantity)]  # type: ignore[attr-defined]
    figure.param_names = ["case"]  # type: ignore[attr-defined]
    figure.pretty_name = quantity.replace("_", " ")  # type: ignore[attr-defined]
    return figure


track_step_time = track("step_time")
track_step_time_to_control = track("step_time_to_control")
track_scaling_loss = track("scaling_loss")
track_exposed_communication = track("exposed_communication")
track_peak_memory = track("peak_memory")
track_wire_bytes = track("wire_bytes")
track_launch_cost = track("launch_cost")

assert {n.removeprefix("track_") for n in list(globals()) if n.startswith("track_")} == {
    *QUANTITIES
}
