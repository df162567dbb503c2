"""Yield the values of recovery trials and interrupted trainings to which thresholds are applied."""

from collections.abc import Callable, Iterator, Sequence

from harness.analysis.judging.series import Series, Values
from harness.features.recovery import goodput
from harness.record import RunRecord, Trial
from harness.record.recovery import FINE, FaultedTraining

#: Marks a module that yields series; ``heads.modules`` finds it by this name.
SERIES = "recovery"


def series(run: RunRecord) -> Iterator[Series]:
    """Yield series of recovery trials, then series of trainings with a schedule of faults."""
    yield from recoveries(run.recoveries)
    yield from goodputs(run.played)


def goodputs(played: Sequence[FaultedTraining]) -> Iterator[Series]:
    """Yield a series for each case that was trained with a schedule of faults.

    Each training of the case is one value.
    """
    drawn = [p for p in played if p.mtbf_s is not None]
    for case in dict.fromkeys(p.case for p in drawn):
        family = case.partition("@")[0]
        plays = [p for p in drawn if p.case == case]
        values = {
            "goodput": tuple(goodput.goodput(play) for play in plays),
            "lost_work": tuple(goodput.lost_work(play) for play in plays),
            "interruptions": tuple(goodput.interruptions(play) for play in plays),
        }
        yield Series(
            name=case,
            family=family,
            world_size=drawn[0].world_size,
            num_nodes=1,
            first=values,
            again=dict.fromkeys(values, ()),
        )


def recoveries(trials: Sequence[Trial]) -> Iterator[Series]:
    """Yield a series for each combination of case, fault, way of saving and new world size."""
    for name in dict.fromkeys(trial.name for trial in trials):
        named = [trial for trial in trials if trial.name == name]
        wrong = ""
        went_on = {trial.continued for trial in named} - {None, *FINE}
        if went_on:
            wrong = f"the resumed training continues {' and '.join(sorted(map(str, went_on)))}"
        elif not all(trial.equal or trial.continued for trial in named):
            wrong = "the resumed training does not match an uninterrupted one bit for bit"
        elif not all(trial.blamed == trial.rank for trial in named):
            wrong = "the blamed rank is not the rank into which the fault was injected"

        def values(attempt: int, named: Sequence[Trial] = named) -> Values:
            def readings_of(read: Callable[[Trial], float | None]) -> tuple[float, ...]:
                readings = (read(trial) for trial in named if trial.attempt == attempt)
                return tuple(value for value in readings if value is not None)

            return {
                "recovery_s": readings_of(lambda trial: trial.recovery_s),
                "checkpoint_stall_s": readings_of(lambda trial: trial.stall_s),
                "checkpoint_bandwidth": readings_of(
                    lambda trial: trial.bytes / trial.save_s if trial.save_s else None
                ),
            }

        yield Series(
            name=name,
            family=named[0].case.partition("@")[0],
            world_size=named[0].world,
            num_nodes=1,
            first=values(0),
            again=values(1),
            wrong=wrong,
        )
