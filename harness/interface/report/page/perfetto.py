"""Embed the merged trace of a run in its page; a button opens it in Perfetto or saves it.

The page opens ui.perfetto.dev, sends messages until it answers, and posts the trace to it
(https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui). The trace stays in the
browser.
"""

import base64
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.timeline import merge
from harness.analysis.timeline.close import trace_path
from harness.analysis.timeline.views import shown
from harness.base.errors import ScaleproofError
from harness.base.packs import size
from harness.record import LaunchRecord, RunRecord

#: The largest trace that a page embeds, in bytes: the compressed traces of all cases together.
MOST_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A trace in a page.

    ``data`` is the file ``name`` in base 64, or empty if the traces are too large for a page.
    ``num_cases`` is the number of profiled cases in it.
    """

    name: str
    num_cases: int
    data: str


def embedded(run: RunRecord, folder: Path | None) -> Embedded | None:
    """Return the trace that the page of a run embeds, or None if the run has no traces to open."""
    profiled = {} if folder is None else _profiled(run, folder)
    if folder is None or not profiled:
        return None
    name = f"{run.run}.trace.json.gz"
    sizes = (_size(folder, launch) for launch in profiled.values())
    if sum(sizes) > MOST_BYTES:
        return Embedded(name=name, num_cases=len(profiled), data="")
    windows = {case: functools.partial(shown, folder, x) for case, x in profiled.items()}
    try:
        packed = merge.packed(windows)
    except ScaleproofError:  # A trace cannot be read, so the page has no trace.
        return None
    data = base64.b64encode(packed).decode() if len(packed) <= MOST_BYTES else ""
    return Embedded(name=name, num_cases=len(profiled), data=data)


def _profiled(run: RunRecord, folder: Path) -> Mapping[str, LaunchRecord]:
    """Return the profiled launch of each case whose traces are on this machine."""
    cases = {arm.case.hash: arm.case.id for plan in run.plans for arm in plan.arms}
    out: dict[str, LaunchRecord] = {}
    for launch in run.launches:
        if launch.budget is not None and launch.case in cases and _size(folder, launch):
            out.setdefault(cases[launch.case], launch)
    return out


def _size(folder: Path, launch: LaunchRecord) -> int:
    """Return the size of a launch's traces in bytes, or 0 if a trace is missing."""
    try:
        return sum(size(trace_path(folder, launch.launch, rank.rank)) for rank in launch.ranks)
    except OSError:
        return 0
