"""The Sweeper: launches sweeps of the collectives, before and beside what is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.base.documents import Json
from harness.base.errors import ScaleproofError
from harness.measure.bench import Launcher
from harness.measure.progress import Moment, Progress, waiting
from harness.measure.run import Run
from harness.record import Purpose, fabric
from harness.spec import Plan, StandIn
from harness.spec.site import Site


class Sweeper:
    """All sweeps of one run."""

    def __init__(self, launcher: Launcher, progress: Progress, run: Run) -> None:
        self._launcher, self._progress, self._run = launcher, progress, run

    def first(self, plans: Sequence[Plan]) -> None:
        """One sweep over every network that these plans use, where there is none yet.

        A fabric that breaks is noted: what is trained over it will say the rest.
        """
        settings = self._run.settings
        if sum(settings.nodes) < 2:
            return
        cases = [a.case for p in plans for a in p.arms if a.case.device is settings.device]
        networks = {c.network: c for c in cases if c.world_size > 1}
        done = {r.network for r in self._run.fabric}
        for network, case in networks.items():
            if fabric.label(network) in done:
                continue
            emulated = StandIn.EMULATED in case.stand_in
            site = Site(
                device=settings.device, backend=case.backend, nodes=settings.nodes,
                engine=settings.engine, emulated=emulated,
            )  # fmt: skip
            try:
                self.sweep(site, dict(network), 1)
            except ScaleproofError as error:
                self._run.notes.append(f"fabric: {error.what}")
                self._progress.note(self._run.notes[-1])

    def sweep(self, site: Site, knobs: Mapping[str, Json], times: int) -> None:
        """Sweep every shape of a site, in turn."""
        self._launcher.ready(waiting(self._progress))
        for i in range(times):
            for shape in fabric.shapes(site.nodes):
                case = site.fabric(shape, knobs)
                moment = Moment(
                    plan=case.world, arm="", purpose=Purpose.FABRIC, launch=i + 1,
                    num_launches=times, step=0, num_steps=0, elapsed_s=0.0, left_s=None, last="",
                )  # fmt: skip
                self._progress.show(moment)
                self._run.fabric += self._launcher.sweep(case, self._run.folder)

    def pair_bps(self, site: Site, knobs: Mapping[str, Json], hosts: tuple[int, int]) -> float:
        """Bus bandwidth of two nodes' all-reduce at the largest payload, B/s."""
        case = site.fabric(tuple(site.nodes[host] for host in hosts), knobs)
        (row,) = self._launcher.sweep(case, self._run.folder, hosts, only="all_reduce")
        return row.bus_bps or 0.0
