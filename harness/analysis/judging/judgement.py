"""All verdicts of a record, recomputed from it: on its plans, and on what was measured apart."""

from __future__ import annotations

from harness.analysis.judging import sweeps
from harness.analysis.judging import verdicts as verdict
from harness.analysis.judging.series import Series
from harness.record import RunRecord
from harness.record.outcome import Verdict
from harness.record.recovery import Trial


def apart(run: RunRecord) -> list[Series]:
    """What rules are held against beside plans."""
    return [*sweeps.series(run.fabric), *recoveries(run.recoveries)]


def of_apart(run: RunRecord) -> tuple[Verdict, ...]:
    """The verdicts on these."""
    return tuple(v for s in apart(run) for v in s.verdicts(run))


def verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """Every verdict: of the fabric first, as it was measured first."""
    return (*of_apart(run), *verdict.verdicts(run))


def recoveries(trials: tuple[Trial, ...]) -> list[Series]:
    """Trials by case, fault, way of saving and new world."""
    found: dict[str, list[Trial]] = {}
    for t in trials:
        found.setdefault(t.name, []).append(t)
    out = []
    for name, own in found.items():
        wrong = ""
        if not all(t.equal for t in own):
            wrong = "what went on is not what was saved, to the bit"
        elif not all(t.blamed == t.rank for t in own):
            wrong = "the rank that was broken was not the one named"
        first = own[0]
        out.append(
            Series(
                name=name,
                family=first.case.partition("@")[0],
                world_size=first.world,
                num_nodes=1,
                values={
                    "recovery_s": tuple(t.recovery_s for t in own),
                    "checkpoint_stall_s": tuple(t.stall_s for t in own),
                    "checkpoint_bandwidth": tuple(t.bytes / t.save_s for t in own if t.save_s),
                },
                wrong=wrong,
            )
        )
    return out
