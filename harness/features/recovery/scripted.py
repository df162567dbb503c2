"""Recovery of a user's own training: broken on purpose, resumed by its user's own command.

whole     one launch that is never broken: losses and samples of every update
broken    the same, until a rank is struck; its folder stays, with the checkpoints in it
resumed   the user's command in that folder: its weights are looked up in the broken journal
trial     what was lost, each phase's time, and how the training goes on
"""

import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from harness.base.documents import from_doc
from harness.base.errors import LaunchError
from harness.cases import CaseSpec, Fault, FaultScenario
from harness.features.recovery.recoverer import Recoverer, timeout_s
from harness.host import copies
from harness.launch.wire.messages import Break, Deadlines
from harness.measure.bench import SCRIPTS
from harness.measure.session import Session
from harness.record import Continued, Trial, Update

#: Updates that are compared after the break.
AFTER = 8
#: Relative differences of losses that a GPU's sums in another order explain.
LOSSES = 1e-3
#: Silence is a hang if it lasts so many times the longest one of a training that was not broken.
SILENCE = 3.0
LEAST_S = 10.0

#: What each rank of a launch wrote down.
Journals: TypeAlias = Sequence[Sequence[Update]]


class ScriptRecoverer(Recoverer):
    """Strikes before update ``after``; ``words`` resume the training."""

    def __init__(self, session: Session, words: str, after: int) -> None:
        super().__init__(session)
        self._words = words
        self._after = after
        self._never_broken: dict[str, Journals] = {}

    def _trial(self, course: FaultScenario, rank: int) -> Trial:
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
        """The training, in a folder that nothing was written to."""
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
        )

    def _whole_of(self, case: CaseSpec) -> Journals:
        """The journals of the same training, never broken."""
        if case.hash not in self._never_broken:
            task = self._task(case)
            ended, folder = self._bench.train(case, self._run.folder, task, SCRIPTS)
            self._well(ended, folder, case)
            self._never_broken[case.hash] = whole = journals(folder, case)
            if len(whole[0]) <= self._after:
                raise LaunchError(
                    f"the training ends after {len(whole[0]) - 1} updates",
                    where=case.script,
                    expected=f"more than {self._after}, before which it is broken",
                    fix=f"--break-after {max(1, len(whole[0]) // 2)}",
                )
        return self._never_broken[case.hash]


def journals(out: Path, case: CaseSpec) -> Journals:
    """The journals of a launch, in the order of ranks."""
    files = [out / f"rank{rank}.journal" for rank in range(case.world_size)]
    return [
        [
            from_doc(Update, json.loads(line))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in files
    ]


def went_on_at(broken: Journals, resumed: Journals) -> int | None:
    """After how many updates of the broken training the resumed one goes on; None = after none.

    Every rank has to begin with the weights that it had then.
    """
    lasts = [len(b) - 1 for b in broken]
    for at in range(min(lasts), -1, -1):
        if all(r[0].state == b[at].state for r, b in zip(resumed, broken, strict=True)):
            return at
    return None


def continued(at: int | None, whole: Journals, resumed: Journals) -> Continued:
    """How a training goes on that was resumed after ``at`` updates."""
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
    """How long ranks may be silent, by how long they were."""
    quiet = max(b.at - a.at for j in whole for a, b in itertools.pairwise(j[1:]))
    step_s = max(LEAST_S, SILENCE * quiet)
    return replace(SCRIPTS, step_s=step_s, collective_s=step_s)
