"""The Sweeper: launches sweeps of the collectives, before training and apart from it."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import count

from harness.analysis.judging.judge import FIRST_LOOK
from harness.analysis.judging.series import series
from harness.analysis.judging.verdicts import of_series
from harness.base.documents import Json
from harness.base.errors import RetryableError, ScaleproofError
from harness.cases import CaseSpec, Plan, Site, StandIn
from harness.measure.confirming import confirm
from harness.measure.progress import Moment
from harness.measure.session import Session
from harness.record import Purpose, Row, Verdict
from harness.record.fabric import label, shapes


class Sweeper:
    """Launches sweeps of the collectives and enters their results in the run of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._run = session.run

    def first(self, plans: Sequence[Plan]) -> None:
        """Sweep every network that these plans use once, unless the run already has a sweep of it.

        Operations that a threshold judges are swept more often. If a sweep breaks, its error
        becomes a note of the run and no exception is raised, because the training over the same
        network will fail as well.
        """
        settings, catalogue = self._session.settings, self._session.catalogue
        if sum(settings.nodes) < 2:
            return
        cases = [
            arm.case for plan in plans for arm in plan.arms if arm.case.device is settings.device
        ]
        networks = {catalogue.network(c): c for c in cases if c.world_size > 1}
        done = {row.network for row in self._run.fabric}
        for network, case in networks.items():
            if label(network) in done:
                continue
            site = Site(
                device=settings.device,
                backend=case.backend,
                nodes=settings.nodes,
                engine=settings.engine,
                emulated=StandIn.EMULATED in case.stand_in,
            )
            try:
                self.sweep(site, dict(network), 1)
                self._judge(site, dict(network))
            except ScaleproofError as error:
                self._run.notes.append(f"fabric: {error.what}")
                self._session.progress.note(self._run.notes[-1])

    def _judge(self, site: Site, knobs: Mapping[str, Json]) -> None:
        """Repeat the sweeps of the operations that a threshold judges.

        The judge needs a fixed number of sweeps. To confirm a FAIL, the same number is added.
        """
        run = self._run.bare()
        judged = {
            s.operation for s in series(run) for rule in run.thresholds if s.matched_by(rule, run)
        }
        for operation in sorted(judged - {""}):
            self.sweep(site, knobs, FIRST_LOOK - 1, only=operation)

        def again(failing: Sequence[Verdict]) -> bool:
            for operation in sorted(judged - {""}):
                self.sweep(site, knobs, FIRST_LOOK, attempt=1, only=operation)
            return False

        confirm(lambda: of_series(self._run.bare()), again)

    def measure(self, site: Site, knobs: Mapping[str, Json], times: int) -> None:
        """Sweep a site ``times`` times, and at most ``times`` more to confirm a FAIL."""
        self.sweep(site, knobs, times)
        done = count()

        def again(_: Sequence[Verdict]) -> bool:
            more = next(done) < times
            if more:
                self.sweep(site, knobs, 1, attempt=1)
            return more

        confirm(lambda: of_series(self._run.bare()), again)

    def sweep(
        self,
        site: Site,
        knobs: Mapping[str, Json],
        times: int,
        *,
        attempt: int = 0,
        only: str = "",
    ) -> None:
        """Sweep every shape of a site in turn, ``times`` times.

        ``only`` is the operation that is swept; all operations are swept if it is empty.
        """
        self._session.ready()
        self._run.seal()
        for i in range(times):
            for shape in shapes(site.nodes):
                case = site.fabric(shape, knobs)
                moment = Moment(
                    plan=case.world,
                    number=1,
                    num_plans=1,
                    arm="",
                    purpose=Purpose.FABRIC,
                    launch=i + 1,
                    num_launches=times,
                    step=0,
                    num_steps=0,
                    elapsed_s=0.0,
                    left_s=None,
                    last="",
                )
                self._session.progress.show(moment)
                rows = self._swept(case, only)
                self._run.add_sweep([dataclasses.replace(row, attempt=attempt) for row in rows])

    def _swept(self, case: CaseSpec, only: str) -> list[Row]:
        """Return the rows of one sweep.

        A sweep that ended by a transient failure, such as a lost node, is repeated once.
        """
        bench, folder = self._session.bench, self._run.folder
        try:
            return bench.sweep(case, folder, only)
        except RetryableError as error:
            self._run.notes.append(f"fabric: {error.what}; swept once more")
            self._session.progress.note(self._run.notes[-1])
            self._session.enter_broken()
            return bench.sweep(case, folder, only)
        finally:
            self._session.enter_broken()
