"""Inject a fault into a training, resume the training, and time its recovery."""

import itertools
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

import msgspec

from harness.analysis.judging.verdicts import of_series
from harness.base.documents import from_doc
from harness.base.errors import LaunchError
from harness.cases import CaseSpec, Fault, FaultScenario
from harness.host import copies
from harness.launch import causes
from harness.launch.engine import Ended
from harness.launch.running import LOST_S
from harness.launch.wire.messages import Break, Deadlines, Train
from harness.measure.bench import SCRIPTS
from harness.measure.confirming import confirm
from harness.measure.session import Session
from harness.record import Continued, RankRestart, Trial, Update, Verdict

#: Number of updates after the fault that are compared with an uninterrupted training run.
AFTER = 8
#: Largest relative difference of losses that a different order of summation on a GPU explains.
LOSSES = 1e-3
#: A rank of a script counts as hung if it completes no update for SILENCE times the longest such
#: silence in an uninterrupted training run, and for at least LEAST_S seconds.
SILENCE = 3.0
LEAST_S = 10.0

#: The lists of updates that the ranks of a launch have written, in the order of ranks.
Journals: TypeAlias = Sequence[Sequence[Update]]


def journals(out: Path, case: CaseSpec) -> Journals:
    """Return the journals that the ranks of a launch have written to a folder."""
    files = [out / f"rank{rank}.journal" for rank in range(case.world_size)]
    return [
        [
            from_doc(Update, json.loads(line))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in files
    ]


def went_on_at(broken: Journals, resumed: Journals) -> int | None:
    """Return the number of the update after which the resumed training continues.

    At that update of the broken training, every rank had the weights with which the resumed
    training begins. Return None if there is no such update.
    """
    lasts = [len(b) - 1 for b in broken]
    for at in range(min(lasts), -1, -1):
        if all(r[0].state == b[at].state for r, b in zip(resumed, broken, strict=True)):
            return at
    return None


def continued(at: int | None, whole: Journals, resumed: Journals) -> Continued:
    """Return how a resumed training continues, relative to an uninterrupted one.

    It was resumed after ``at`` updates, and ``whole`` are the journals of the uninterrupted
    training. The order of samples is compared first, then the losses.
    """
    if at is None:
        return Continued.OTHER_WEIGHTS
    if at == 0:
        return Continued.BEGINNING
    for never, again in zip(whole, resumed, strict=True):
        pairs = list(zip(never[at + 1 :], again[1:], strict=False))
        if any(a.samples != b.samples for a, b in pairs):
            return Continued.OTHER_SAMPLES
    for never, again in zip(whole, resumed, strict=True):
        for a, b in zip(never[at + 1 :], again[1:], strict=False):
            if not math.isclose(a.loss, b.loss, rel_tol=LOSSES) and not math.isnan(a.loss):
                return Continued.OTHER_LOSSES
    return Continued.EXACTLY


def _limits(whole: Journals) -> Deadlines:
    """Return how long ranks may be silent before they count as hung.

    This follows from the longest silence in the journals of an uninterrupted training.
    """
    quiet = max(b.at - a.at for j in whole for a, b in itertools.pairwise(j[1:]))
    step_s = max(LEAST_S, SILENCE * quiet)
    return replace(SCRIPTS, step_s=step_s, collective_s=step_s)


#: Marks the module that measures fault scenarios; ``heads.modules`` finds it by this name.
COURSES = "recovery"
#: Number of steps of a training run, the number of steps after which it saves a checkpoint, and the
#: step before which the fault is injected.
STEPS = 12
SAVE_AFTER = 4
BREAK_BEFORE = 7
#: Seconds of silence that count as a hang while recovery is measured, in a step and in a
#: collective. Both are shorter than the recovery time that any threshold allows. The time to write
#: a checkpoint is added, because all ranks are silent while they write it. It is estimated as 16
#: bytes for each parameter at WRITTEN_A_SECOND bytes per second.
STEP_S = 10.0
COLLECTIVE_S = 8.0
WRITTEN_A_SECOND = 0.3e9
#: Number of restarts. If all of them fail, the trial is an error.
RESTARTS = 3


def deadlines(num_params: int, stall_s: float | None = None) -> Deadlines:
    """Return how long ranks may be silent before they count as hung.

    ``stall_s`` is the measured duration of a save in seconds, or None if it was not measured. If it
    is known, a rank counts as hung as soon as a save cannot explain its silence.
    """
    write_s = 16 * num_params / WRITTEN_A_SECOND
    if stall_s is not None:
        write_s = min(write_s, 2 * stall_s + 1)
    return Deadlines(step_s=STEP_S + write_s, collective_s=COLLECTIVE_S + write_s)


def timeout_s(fault: Fault, limits: Deadlines) -> float:
    """Return the seconds of silence after which a fault is detected.

    Return 0 for faults that are detected immediately.
    """
    silent = min(limits.collective_s, limits.step_s)
    return {Fault.HANG: silent, Fault.NODE: min(silent, LOST_S)}.get(fault, 0.0)


class Recoverer:
    """Measures recovery trials in a session. Each trial breaks and resumes one training."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._bench = session.bench
        self._progress = session.progress
        self._run = session.run
        self._whole: dict[tuple[str, bool], RankRestart] = {}

    def measure(self, course: FaultScenario, times: int) -> None:
        """Break and resume a training ``times`` times.

        A FAIL is confirmed by up to ``times`` further trials.
        """
        self._session.describe([course.case, course.into or course.case])
        for i in range(times):
            self._try(course, i, times)
        done = count()

        def again(_: Sequence[Verdict]) -> bool:
            i = next(done)
            if i < times:
                self._try(course, i, times, attempt=1)
            return i < times

        def judged() -> list[Verdict]:
            return [series for series in of_series(self._run.bare()) if series.case == course.name]

        confirm(judged, again)

    def _try(self, course: FaultScenario, i: int, times: int, *, attempt: int = 0) -> None:
        """Measure one more trial and add it to the run. Successive trials break different ranks."""
        rank = course.victim(i)
        fresh = ", to confirm a FAIL" if attempt else ""
        self._progress.note(f"{course.name}: rank {rank}, trial {i + 1}/{times}{fresh}")
        self._run.seal()
        self._run.add_trial(replace(self._trial(course, rank), attempt=attempt))

    def _trial(self, course: FaultScenario, rank: int) -> Trial:
        """Break ``rank`` of a training, resume the training, and return the times of the
        recovery.
        """
        case = course.case
        into = course.into or course.case
        whole = self._uninterrupted(case, course.asynchronous)
        place = self._empty_place()
        task = Train(
            steps=STEPS,
            folder=str(place),
            save_after=SAVE_AFTER,
            asynchronous=course.asynchronous,
            fault=course.fault,
            rank=rank,
            fault_step=BREAK_BEFORE,
        )
        limits = self._limits(case, whole.stall_s)
        ended, folder = self._bench.train(case, self._run.folder, task, limits)
        blamed, struck_at = self._broken(ended, folder, case, task)
        resumed = msgspec.structs.replace(task, resume=True, save_after=0, fault=Fault.NONE)
        began_at = time.time()
        self._bench.worlds.ready()
        import_s = time.time() - began_at
        ranks = self._go_on(into, resumed)
        slowest = max(ranks, key=lambda restart: restart.first_step_at)
        group_s = sum(slowest.phases_s.get(k, 0.0) for k in ("process group", "first collective"))
        load_s = slowest.load_s
        total_s = slowest.first_step_at - began_at
        other_s = slowest.phases_s.get("files", 0.0) + slowest.phases_s.get("model", 0.0)
        start_s = max(0.0, total_s - import_s - group_s - load_s - other_s)
        same = into.world_size == case.world_size
        tail = whole.losses[SAVE_AFTER:] if same else ()
        equal = all(restart.loaded == whole.saved for restart in ranks) and (
            not same
            or (all(restart.last == whole.last for restart in ranks) and ranks[0].losses == tail)
        )
        return Trial(
            case=case.id,
            fault=str(course.fault),
            rank=rank,
            blamed=blamed,
            world_before=case.world_size,
            world=into.world_size,
            start_s=start_s,
            detect_s=ended.noticed_at - struck_at,
            stop_s=began_at - ended.noticed_at,
            group_s=group_s,
            load_s=load_s,
            step_s=other_s,
            equal=equal,
            import_s=import_s,
            timeout_s=timeout_s(course.fault, limits),
            asynchronous=course.asynchronous,
            stall_s=whole.stall_s,
            save_s=whole.save_s,
            bytes=whole.bytes,
        )

    def _uninterrupted(self, case: CaseSpec, later: bool) -> RankRestart:
        """Return what rank 0 recorded of the same training without a fault.

        If ``later`` is set, the training saves its checkpoints asynchronously.
        """
        key = (case.hash, later)
        if key not in self._whole:
            place = self._empty_place()
            task = Train(steps=STEPS, folder=str(place), save_after=SAVE_AFTER, asynchronous=later)
            ended, folder = self._bench.train(case, self._run.folder, task, self._limits(case))
            self._whole[key] = self._read(ended, folder, case)[0]
        return self._whole[key]

    def _limits(self, case: CaseSpec, stall_s: float | None = None) -> Deadlines:
        """Return the deadlines for a case from its number of parameters."""
        facts = self._run.described[case.hash].facts
        return deadlines(0 if facts is None else facts.num_params, stall_s)

    def _empty_place(self) -> Path:
        """Remove the checkpoint folder of the run, and return its path."""
        place = (self._run.folder / "checkpoint").resolve()
        shutil.rmtree(place, ignore_errors=True)
        return place

    def _go_on(self, case: CaseSpec, task: Train) -> Sequence[RankRestart]:
        """Resume a training, and return the record of every rank.

        Raise LaunchError with the cause of every attempt if ``RESTARTS`` attempts failed.
        """
        tried: list[str] = []
        while True:
            ended, folder = self._bench.train(case, self._run.folder, task, self._limits(case))
            cause = causes.attribute(ended.ranks, ended.unreachable)
            if cause is None:
                return self._read(ended, folder, case)
            tried.append(f"{len(tried) + 1}: rank {cause.rank}: {cause.message}")
            self._progress.note(f"{case.id}: restart {tried[-1]}")
            if len(tried) == RESTARTS:
                raise LaunchError(
                    f"all {RESTARTS} restarts failed: {'; '.join(tried)}",
                    where=case.id,
                    expected="one of the restarts resumes the training",
                    fix=f"less {folder}/rank{cause.rank}.log",
                )

    @staticmethod
    def _broken(
        ended: Ended, out: Path, case: CaseSpec, task: Train | Break
    ) -> tuple[int | None, float]:
        """Return the blamed rank and the time of the fault in seconds since the epoch.

        Raise LaunchError if the fault did not happen.
        """
        cause = causes.attribute(ended.ranks, ended.unreachable)
        struck = out / f"rank{task.rank}.struck"
        if cause is None or not struck.is_file():
            raise LaunchError(
                "the injected fault did not happen",
                where=case.id,
                expected=f"rank {task.rank} breaks before step {task.fault_step}",
                fix=f"ls {out}",
            )
        return cause.rank, float(struck.read_text(encoding="utf-8"))

    @staticmethod
    def _well(ended: Ended, out: Path, case: CaseSpec) -> None:
        """Raise LaunchError with the cause if a rank did not finish."""
        cause = causes.attribute(ended.ranks, ended.unreachable)
        if cause is not None:
            raise LaunchError(
                f"rank {cause.rank}: {cause.message}",
                where=case.id,
                expected="the training completes all of its steps",
                fix=f"less {out}/rank{cause.rank}.log",
            )

    @classmethod
    def _read(cls, ended: Ended, out: Path, case: CaseSpec) -> Sequence[RankRestart]:
        """Return the records that the ranks have written.

        Raise LaunchError if a rank did not finish.
        """
        cls._well(ended, out, case)
        texts = [
            (out / f"rank{r}.json").read_text(encoding="utf-8") for r in range(case.world_size)
        ]
        return [from_doc(RankRestart, json.loads(text)) for text in texts]


class ScriptRecoverer(Recoverer):
    """Measures the recovery of a user's training script.

    The fault is injected before update ``after``. ``words`` is the command that resumes the
    training.
    """

    def __init__(self, session: Session, words: str, after: int) -> None:
        super().__init__(session)
        self._words = words
        self._after = after
        self._never_broken: dict[str, Journals] = {}

    def _trial(self, course: FaultScenario, rank: int) -> Trial:
        """Break ``rank`` of a script's training, resume the training, and return the recovery
        times.
        """
        case = course.case
        whole = self._whole_of(case)
        limits = _limits(whole)
        strike = {"fault": course.fault, "rank": rank, "fault_step": self._after}
        task = msgspec.structs.replace(self._task(case), **strike)
        ended, folder = self._bench.train(case, self._run.folder, task, limits)
        blamed, struck_at = self._broken(ended, folder, case, task)
        broken = journals(folder, case)
        began_at = time.time()
        self._bench.worlds.ready()
        import_s = time.time() - began_at
        again = msgspec.structs.replace(task, words=self._words, fault=Fault.NONE)
        done, folder = self._bench.train(case, self._run.folder, again, SCRIPTS)
        self._well(done, folder, case)
        resumed = journals(folder, case)
        slowest = max((j[1] for j in resumed), key=lambda update: update.at)
        group_s, load_s = slowest.spent_s["group"], slowest.spent_s["load"]
        from_script_s = slowest.at - slowest.began_at
        resumed_at = went_on_at(broken, resumed)
        saves = [update.spent_s["save"] for update in whole[0]]
        return Trial(
            case=case.id,
            fault=str(course.fault),
            rank=rank,
            blamed=blamed,
            world_before=case.world_size,
            world=case.world_size,
            detect_s=ended.noticed_at - struck_at,
            stop_s=began_at - ended.noticed_at,
            import_s=import_s,
            start_s=max(0.0, slowest.began_at - began_at - import_s),
            group_s=group_s,
            load_s=load_s,
            step_s=max(0.0, from_script_s - group_s - load_s),
            timeout_s=timeout_s(course.fault, limits),
            stall_s=max((b - a for a, b in itertools.pairwise(saves)), default=0.0),
            continued=(how := continued(resumed_at, whole, resumed)),
            equal=how is Continued.EXACTLY,
            lost=None if resumed_at is None else self._after - resumed_at,
        )

    def _task(self, case: CaseSpec) -> Break:
        """Return the task of the training, in a private copy of its folder."""
        settings = self._session.settings
        folder = settings.folder or str(Path.cwd())
        copies.refuse_large(Path(folder), self._run.folder, settings.data)
        return Break(
            folder=folder,
            words=case.script,
            place=str(self._empty_place()),
            steps=self._after + AFTER,
            fresh=settings.fresh,
            data=settings.data,
            writes=settings.writes,
        )

    def _whole_of(self, case: CaseSpec) -> Journals:
        """Return the journals of the same training without a fault.

        Raise LaunchError if this training ends before the fault would be injected.
        """
        if case.hash not in self._never_broken:
            task = self._task(case)
            ended, folder = self._bench.train(case, self._run.folder, task, SCRIPTS)
            self._well(ended, folder, case)
            self._never_broken[case.hash] = whole = journals(folder, case)
            if len(whole[0]) <= self._after:
                raise LaunchError(
                    f"the training ends after {len(whole[0]) - 1} updates",
                    where=case.script,
                    expected=f"the training makes more than {self._after} updates before the fault",
                    fix=f"--break-after {max(1, len(whole[0]) // 2)}",
                )
        return self._never_broken[case.hash]
