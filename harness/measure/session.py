"""The Session: one run that is being measured, with its bench, engine and progress display."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from harness.analysis.samples.references import ASTRAY
from harness.analysis.verify import MANY
from harness.base import programs
from harness.base.documents import from_doc
from harness.base.errors import RetryableError
from harness.base.packs import pack
from harness.cases import CaseSpec, Catalogue, Device, Settings, Threshold
from harness.host import admission
from harness.host.admission import Finding, Level
from harness.launch import cluster
from harness.launch.engine import Where
from harness.launch.wire.messages import HowFar
from harness.measure.bench import Bench, figured
from harness.measure.describe_cache import DescribeCache
from harness.measure.order import Order
from harness.measure.progress import INTERRUPTED, Looking, Moment, Progress, end_on_signals, waiting
from harness.measure.run import Run
from harness.record import LaunchRecord, Purpose, RunRecord
from harness.record.launch import FLAKES, num_again

#: Number of cases that an agent describes between two updates of the progress display.
ASKED_AT_ONCE = 32
#: A function that trains replicates of references. It returns the orders with these replicates.
Replicate = Callable[[], Sequence[Order]]
#: The progress of describing is displayed only for more cases than this.
FEW = 6


class Session:
    """Owns the run, the bench that launches, and the progress display.

    A pytest session is one run with several plans, which use the same baselines and machine facts.

    As a context manager, a session warms up first, keeps the measurements if an error ends it, and
    stops its agents. Measurer, Sweeper and Recoverer each receive the session and do not depend on
    each other.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        results: Path,
        thresholds: Sequence[Threshold],
        progress: Progress,
    ) -> None:
        end_on_signals()
        self.catalogue = catalogue
        self.settings = settings
        self.progress = progress
        self.engine = catalogue.get("engines", settings.engine)
        self.run = Run(catalogue, settings, results, thresholds, lambda: self.bench.worlds.queued_s)
        file = None if settings.cluster is None else Path(settings.cluster)
        where = Where(
            nodes=settings.nodes,
            device=settings.device,
            shared_gpu=settings.shared_gpu,
            folder=results / "engine" / self.run.name,
            settings=cluster.cluster_settings(file, settings.engine, catalogue.entries["engines"]),
        )
        self.bench: Bench = Bench(catalogue, self.engine, where, settings)
        self._examined = self._left = False
        progress.begin(self.run)

    def __enter__(self) -> Session:
        try:
            self.warm()
        except BaseException as error:  # __exit__ is not called if __enter__ raises
            self.progress.clear()
            self.progress.broke(error)
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Save the run if an error ended it, and stop all agents."""
        try:
            if kind is not None and (self.run.plans or self.run.fabric or self.run.recoveries):
                self.run.save(complete=False)
        finally:
            self.progress.clear()
            if error is not None:
                self.progress.broke(error)
            self.bench.fleets.close()
            self._left = True

    def warm(self) -> None:
        """Examine the host, then start the agents, which import torch in the background.

        If ranks run on other machines, these machines are examined after their agents have joined.
        """
        remote = self.engine.engine.remote
        if not (self._examined or remote):
            self._admit(admission.examine(self._num_gpus(0)))
        self.bench.worlds.start()
        self.meet()
        if not self._examined and remote:
            self._admit(
                tuple(
                    dataclasses.replace(finding, text=f"{node.machine.host}: {finding.text}")
                    for number, (node, answer) in enumerate(self.bench.worlds.examine())
                    for finding in from_doc(tuple[Finding, ...], answer["admission"])
                    if finding.check != "gpus" or (finding.device or 0) < self._num_gpus(number)
                )
            )

    def _num_gpus(self, node: int) -> int:
        """Return how many GPUs of a node are used; these are the first visible ones."""
        return self.settings.nodes[node] if self.settings.device is Device.CUDA else 0

    def _admit(self, findings: tuple[Finding, ...]) -> None:
        """Enter the findings about a host.

        Keep BAD findings that were made before the run was interrupted.
        """
        self._examined = True
        earlier = [f for f in self.run.admission if f.level is Level.BAD]
        self.run.admission = (*earlier, *findings)
        for finding in findings:
            if finding.level is not Level.OK:
                self.progress.note(f"{finding.check}: {finding.text} ({finding.advice})")

    def meet(self) -> None:
        """Take the facts of the machine from the first node if the engine starts ranks on other
        machines.
        """
        if self.engine.engine.remote and not self.run.nodes:
            self.ready()
            self.run.nodes = tuple(node.machine for node in self.bench.worlds.nodes)
            self.run.machine = self.run.nodes[0]
            self.run.facts = {n.machine.host: n.facts for n in self.bench.worlds.nodes}
            self.run.notes += self.bench.fleets.notes

    def ready(self) -> None:
        """Wait until every agent has joined, and display the wait."""
        self.bench.worlds.ready(waiting(self.progress))

    def resume(self, folder: Path) -> None:
        """Continue an interrupted run on the machine on which it was begun."""
        self.meet()
        self.run.resume(folder)
        self.bench.count_on(folder)

    def describe(self, cases: Sequence[CaseSpec], remembered: DescribeCache | None = None) -> None:
        """Ask the agent to describe the cases that are new, and take other answers from
        ``remembered``.

        Cases with the same computation are described together. The agent then counts their FLOPs
        only once, which saves seconds.
        """
        if remembered is not None:
            self.run.described.update(remembered.of(cases))
        unknown = {case.hash: case for case in cases if case.hash not in self.run.described}
        if not unknown:
            return
        self.ready()
        began = time.monotonic()
        done = 0
        for some in _of_some_models(list(unknown.values())):
            elapsed_s = time.monotonic() - began
            left_s = elapsed_s / done * (len(unknown) - done) if done else None
            if len(unknown) > FEW:
                looking = Looking(
                    case=some[0].id, done=done, num_cases=len(unknown), elapsed_s=elapsed_s,
                    left_s=left_s,
                )  # fmt: skip
                self.progress.show(looking)
            answers = self.bench.describe(some)
            self.run.described.update(
                {case.hash: answer for case, answer in zip(some, answers, strict=True)}
            )
            done += len(some)
        if remembered is not None:
            remembered.keep(list(unknown.values()), self.run.described)
        self.progress.clear()

    def launch(
        self, orders: Sequence[Order], now: Moment, replicate: Replicate | None = None
    ) -> list[LaunchRecord]:
        """Make launches concurrently, enter them in the record and update the progress display.

        If the losses of a launch deviate more than the reference alone allows, ``replicate`` is
        called. It trains replicates of the references, and returns the orders with the replicates
        added. Launches that ended by a transient failure are repeated, except timed launches. The
        block of a timed launch repeats it, because a block makes all of its missing launches. Raise
        RetryableError if nodes are lost repeatedly.
        """
        plan = orders[0].plan.hash
        while True:
            before = num_again((x for x in self.run.launches if x.plan == plan), Purpose.FLAKED)
            entered = self._launch_once(orders, now, replicate)
            flaked = [x for x in entered if x.purpose is Purpose.FLAKED]
            if flaked and before >= FLAKES:
                raise _lost(next(x for x in flaked if x.lost), self.run.folder)
            if not flaked or orders[0].purpose is Purpose.TIMED:
                return entered

    def _launch_once(
        self, orders: Sequence[Order], now: Moment, replicate: Replicate | None
    ) -> list[LaunchRecord]:
        """Make launches concurrently, and enter them in the record with their profiles."""
        run = self.run
        described = [run.described[order.arm.case.hash] for order in orders]

        def on_step(step: int) -> None:
            self.progress.show(dataclasses.replace(now, step=step, elapsed_s=run.elapsed_s))

        if INTERRUPTED.is_set():
            raise KeyboardInterrupt
        run.seal()
        self.bench.data_seed = run.data_seed
        self.bench.worlds.tell(_standing(now, run.elapsed_s))
        launches = self.bench.launch_together(orders, run.folder, described, on_step)
        profiled = [order.behind for order in orders if order.behind is not None]
        orders = [*orders, *profiled[: len(launches) - len(orders)]]
        described = [run.described[order.arm.case.hash] for order in orders]
        if replicate is not None and any(map(_needs_replicates, orders, launches)):
            again = replicate()
            behind = [order.behind for order in again if order.behind is not None]
            launches = figured([*again, *behind][: len(launches)], launches, run.folder, described)
        run.setups = self.bench.fleets.software()
        for note in self.bench.fleets.mended():
            run.notes.append(note)
            self.progress.note(note)
        entered = run.enter(launches)
        for order, launch in zip(orders, entered, strict=True):
            self.progress.launched(order.arm.case, launch)
        for launch in (x for x in entered if x.cause is None):
            pack(run.folder / "launches" / launch.launch, [rank.rank for rank in launch.ranks])
        return entered

    def enter_broken(self) -> None:
        """Enter the broken sweeps, so that their numbers are accounted for."""
        while self.bench.broken:
            self.run.add_broken_sweep(*self.bench.broken.popitem())

    def save(self, *, complete: bool) -> RunRecord:
        """Write the record of the run and return it.

        After the context of the session has ended, this also releases the run for other processes.
        """
        record = self.run.save(complete=complete)
        self.progress.ended(record)
        if complete and len(record.launches) >= MANY:
            self._verify()
        if self._left:
            self.run.release()
        return record

    def _verify(self) -> None:
        """Verify the record in a process of its own, which remembers it: reports need not wait.

        An interrupt ends only this verification, because the record is complete.
        """
        self.progress.note(f"verifying {len(self.run.launches)} launches, once for all reports")
        words = [sys.executable, *programs.MODULE, "harness", "verify", str(self.run.folder)]
        with suppress(KeyboardInterrupt):
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def close(self) -> None:
        """Stop the engine and its agents, and release the run for other processes."""
        self.bench.fleets.close()
        self.run.release()


def _needs_replicates(order: Order, launch: LaunchRecord) -> bool:
    """Return whether replicates of the reference must decide if the losses of a launch are right.

    The losses deviate, but the limit is provisional: only replicates show the effect of rounding.
    """
    provisional = order.reference is not None and order.reference.provisional
    return provisional and any(wrong.startswith(ASTRAY) for wrong in launch.wrong)


def _standing(now: Moment, elapsed_s: float) -> HowFar:
    """Return the progress of a run before this launch, which the agents report."""
    launch = {
        "case": now.arm,
        "launch": f"{now.launch} of {now.num_launches}",
        "plan": f"{now.number} of {now.num_plans}",
        "purpose": str(now.purpose),
    }
    return HowFar(elapsed_s=elapsed_s, left_s=now.left_s, launch=launch)


def _lost(launch: LaunchRecord, folder: Path) -> RetryableError:
    """Return the error for a node that was lost more often than launches are repeated."""
    assert launch.cause is not None
    return RetryableError(
        f"a node was lost again: {launch.cause.message}",
        where=launch.launch,
        expected="nodes that stay available during the run",
        fix=f"scaleproof run --resume {folder}",
    )


def _of_some_models(cases: Sequence[CaseSpec]) -> Iterator[list[CaseSpec]]:
    """Yield groups of cases. Cases with the same computation are in the same group.

    The agent then counts the FLOPs of each model, and imports the modules for it, only once.
    """

    def computes(case: CaseSpec) -> tuple[object, ...]:
        return case.model, case.size, case.precision, case.checkpoint, case.compiled

    asked: list[CaseSpec] = []
    for _, alike in itertools.groupby(sorted(cases, key=computes), computes):
        asked += alike
        if len(asked) >= ASKED_AT_ONCE:
            yield asked
            asked = []
    if asked:
        yield asked
