"""The Player: a training that faults interrupt, started again each time until its end."""

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

from harness.base.errors import LaunchError
from harness.cases import CaseSpec
from harness.features.recovery import goodput
from harness.features.recovery.goodput import Faults
from harness.features.recovery.recoverer import deadlines
from harness.launch import causes
from harness.launch.wire.messages import Deadlines, Play
from harness.measure.session import Session
from harness.record.recovery import FaultedTraining, Mark, TrainingAttempt

#: Steps of the short trainings that costs are measured with, and how many checkpoints they have.
SHORT = 96
SAVES = 8
#: Seconds that at least one of them trains.
LONG_S = 15.0
#: How often a rank is killed in the second one: each time after this share of the first's steps.
STRIKES = 3
STRUCK = 0.3
#: (Seconds since the start, rank) of a fault that no training is there for.
NO_FAULT = (1e9, 0)
#: Sittings in a row without a checkpoint after which a training gets nowhere.
STUCK = 20


class Player:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._run = session.run

    def costs(self, case: CaseSpec, every: int = SHORT // SAVES) -> goodput.Costs:
        """Measures the cost of one of each, by two short trainings, one of which has faults.

        Where these are over within ``LONG_S`` a third one takes that long, and saves as often as it
        is asked for: a disk stalls once in many checkpoints, and seconds do not show it.
        """
        steps_between = SHORT // SAVES
        whole = self.play(case, SHORT, steps_between, iter([NO_FAULT]))
        (sitting,) = whole.sittings
        first, last = (sitting.marks[i][2] for i in (1, -1))
        apart_s = (first - sitting.began_ns + STRUCK * (last - first)) / 1e9
        strikes = [(apart_s * (i + 1), case.world_size - 1) for i in range(STRIKES)]
        trainings = [whole, self.play(case, SHORT, steps_between, iter([*strikes, NO_FAULT]))]
        lasted_s = (last - first) / 1e9
        if lasted_s < LONG_S:
            steps = math.ceil(SHORT * LONG_S / lasted_s)
            trainings.append(self.play(case, steps, every, iter([NO_FAULT])))
        return goodput.costs(trainings)

    def play(
        self,
        case: CaseSpec,
        steps: int,
        every: int,
        faults: Faults,
        mtbf_s: float | None = None,
        seed: int = 0,
    ) -> FaultedTraining:
        """Train to the end, through all faults; LaunchError where something else breaks it."""
        session, run = self._session, self._run
        session.describe([case])
        facts = run.described[case.hash].facts
        limits = deadlines(0 if facts is None else facts.num_params)
        place = (run.folder / "checkpoint").resolve()
        shutil.rmtree(place, ignore_errors=True)
        run.seal()
        began = time.time()
        sittings = list[TrainingAttempt]()
        (due_s, rank) = next(faults)
        while True:
            task = Play(
                steps=steps, folder=str(place), every=every, strike_at=began + due_s, rank=rank
            )
            sittings.append(self._sit(case, task, limits))
            if sittings[-1].struck_ns is None:
                break
            _refuse_stuck(sittings, case, every)
            done = max((step for _, step, _ in sittings[-1].marks), default=0)
            message = f"fault {len(sittings)} at {due_s:.0f} s, rank {rank}, step {done}/{steps}"
            session.progress.note(f"{case.id}: {message}")
            session.bench.worlds.ready()
            # What struck while the world was down is found with the fault before.
            due_s, rank = next(fault for fault in faults if began + fault[0] > time.time())
        played = FaultedTraining(
            case=case.id,
            world_size=case.world_size,
            steps=steps,
            every=every,
            mtbf_s=mtbf_s,
            seed=seed,
            sittings=tuple(sittings),
        )
        run.add_interrupted(played)
        return played

    def _sit(self, case: CaseSpec, task: Play, limits: Deadlines) -> TrainingAttempt:
        """One start, until the end or the fault; LaunchError where something else ends it."""
        began_ns = time.time_ns()
        ended, folder = self._session.bench.train(case, self._run.folder, task, limits)
        sitting = TrainingAttempt(began_ns=began_ns, marks=_marks(folder / "rank0.marks"))
        cause = causes.attribute(ended.ranks, ended.unreachable)
        if cause is None:
            return sitting
        struck = folder / f"rank{task.rank}.struck"
        if not struck.is_file():
            raise LaunchError(
                f"rank {cause.rank}: {cause.message}",
                where=case.id,
                expected="no fault but those that are planted",
                fix=f"less {folder}/rank{cause.rank}.log",
            )
        struck_ns, noticed_ns = (
            int(seconds * 1e9)
            for seconds in (float(struck.read_text(encoding="utf-8")), ended.noticed_at)
        )
        return replace(sitting, rank=task.rank, struck_ns=struck_ns, noticed_ns=noticed_ns)


def _marks(file: Path) -> tuple[tuple[Mark, int, int], ...]:
    """Whole lines; one that was cut by a kill is none."""
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    parts = (line.split() for line in lines)
    return tuple((Mark(what), int(step), int(at)) for what, step, at in parts)


def _refuse_stuck(sittings: list[TrainingAttempt], case: CaseSpec, every: int) -> None:
    """LaunchError for a training that faults keep from its next checkpoint."""
    recent = sittings[-STUCK:]
    saved = any(mark is Mark.SAVED for sitting in recent for mark, _, _ in sitting.marks)
    if len(recent) == STUCK and not saved:
        raise LaunchError(
            f"{STUCK} faults in a row, and no checkpoint between them",
            where=case.id,
            expected=f"time for {every} steps between faults",
            fix="--mtbf 60s",
        )
