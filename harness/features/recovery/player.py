"""Train a case to its end while faults interrupt it, and restart it after each fault."""

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

#: Number of steps and number of checkpoints of the short trainings that measure the unit costs.
SHORT = 96
SAVES = 8
#: Seconds that at least one of the trainings for the unit costs must last.
LONG_S = 15.0
#: Number of faults in the second short training. The training time between two faults is the share
#: STRUCK of the duration of all steps in the first short training.
STRIKES = 3
STRUCK = 0.3
#: A fault, as a pair (seconds since the start, rank), that is due after the end of the training and
#: therefore never happens.
NO_FAULT = (1e9, 0)
#: A training ends with an error after this many successive starts without a checkpoint.
STUCK = 20


class Player:
    """Runs trainings with faults in a session, and adds them to its run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._run = session.run

    def costs(self, case: CaseSpec, every: int = SHORT // SAVES) -> goodput.Costs:
        """Measure the unit costs by two short trainings, one of which has faults.

        If they take less than ``LONG_S`` seconds, a third training takes that long and saves every
        ``every`` steps. It is needed because a disk stalls only at some checkpoints, and a training
        of a few seconds may have none of them.
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
        """Train to the end, and restart the training after every injected fault.

        Raise LaunchError if anything but these faults ends the training.
        """
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
            # A fault during the downtime would have no further effect, so it is skipped.
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
        """Start the training once, and wait for its end or its injected fault.

        Raise LaunchError if anything else ends it.
        """
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
                expected="only the injected faults end the training",
                fix=f"less {folder}/rank{cause.rank}.log",
            )
        struck_ns, noticed_ns = (
            int(seconds * 1e9)
            for seconds in (float(struck.read_text(encoding="utf-8")), ended.noticed_at)
        )
        return replace(sitting, rank=task.rank, struck_ns=struck_ns, noticed_ns=noticed_ns)


def _marks(file: Path) -> tuple[tuple[Mark, int, int], ...]:
    """Return the marks in a file.

    A last line without a line break is incomplete, because the rank was killed. It is ignored.
    """
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    parts = (line.split() for line in lines)
    return tuple((Mark(what), int(step), int(at)) for what, step, at in parts)


def _refuse_stuck(sittings: list[TrainingAttempt], case: CaseSpec, every: int) -> None:
    """Raise LaunchError if faults prevent a training from reaching its next checkpoint."""
    recent = sittings[-STUCK:]
    saved = any(mark is Mark.SAVED for sitting in recent for mark, _, _ in sitting.marks)
    if len(recent) == STUCK and not saved:
        raise LaunchError(
            f"{STUCK} faults in a row struck without a checkpoint between them",
            where=case.id,
            expected=f"at least {every} steps between two faults",
            fix="--mtbf 60s",
        )
