"""The merged trace of a run, inside of its page: a button hands it to Perfetto, or saves it.

https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui: a page opens ui.perfetto.dev,
asks it until it answers, and posts the bytes. They stay in the browser.
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

#: A page has no larger trace in it: bytes of all cases together, compressed.
MOST_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """``data`` is the file ``name`` in base 64, of so many profiled cases; empty where the traces
    are too large for a page.
    """

    name: str
    num_cases: int
    data: str


def embedded(run: RunRecord, folder: Path | None) -> Embedded | None:
    """The traces that the page of a run embeds; None where there is nothing to open."""
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
    except ScaleproofError:  # a trace that cannot be read: the page does without
        return None
    data = base64.b64encode(packed).decode() if len(packed) <= MOST_BYTES else ""
    return Embedded(name=name, num_cases=len(profiled), data=data)


def _profiled(run: RunRecord, folder: Path) -> Mapping[str, LaunchRecord]:
    """The profiled launch of each case whose traces are here."""
    cases = {arm.case.hash: arm.case.id for plan in run.plans for arm in plan.arms}
    out: dict[str, LaunchRecord] = {}
    for launch in run.launches:
        if launch.budget is not None and launch.case in cases and _size(folder, launch):
            out.setdefault(cases[launch.case], launch)
    return out


def _size(folder: Path, launch: LaunchRecord) -> int:
    """Bytes of a launch's traces; 0 where one is gone."""
    try:
        return sum(size(trace_path(folder, launch.launch, rank.rank)) for rank in launch.ranks)
    except OSError:
        return 0
