"""Descriptions of cases by an agent, without launching the cases."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.cases import CaseSpec, Catalogue, Settings
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.record import Described


def described(cases: Sequence[CaseSpec], catalogue: Catalogue) -> list[Described]:
    """Return the descriptions that a run of these cases would record.

    Raise LaunchError if no agent can be started.
    """
    with tempfile.TemporaryDirectory(prefix="scaleproof-describe-") as folder:
        bench = Bench(
            catalogue, catalogue.get("engines", Settings().engine), Where(folder=Path(folder))
        )
        with contextlib.closing(bench.fleets):
            return bench.describe(cases)
