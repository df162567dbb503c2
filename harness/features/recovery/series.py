"""What rules judge of interrupted trainings: each trial, or each play of a schedule, is a value."""

from collections.abc import Callable, Iterator, Sequence

from harness.analysis.judging.series import Series, Values
from harness.features.recovery import goodput
from harness.record import RunRecord, Trial
from harness.record.recovery import FINE, Played

SERIES = "recovery"


def series(run: RunRecord) -> Iterator[Series]:
    """Trials first."""
    yield from recoveries(run.recoveries)
    yield from goodputs(run.played)


def goodputs(played: Sequence[Played]) -> Iterator[Series]:
    """Trainings that faults of a schedule interrupted; each play of a case is a value."""
    drawn = [p for p in played if p.mtbf_s is not None]
    for case in dict.fromkeys(p.case for p in drawn):
        family = case.partition("@")[0]
        plays = [p for p in drawn if p.case == case]
        values = {
            "goodput": tuple(goodput.goodput(p) for p in plays),
            "lost_work": tuple(goodput.lost_work(p) for p in plays),
            "interruptions": tuple(goodput.interruptions(p) for p in plays),
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
    """Trials by case, fault, way of saving and new world."""
    for name in dict.fromkeys(t.name for t in trials):
        named = [t for t in trials if t.name == name]
        wrong = ""
        went_on = {t.continued for t in named} - {None, *FINE}
        if went_on:
            wrong = f"the resumed training goes on {' and '.join(sorted(map(str, went_on)))}"
        elif not all(t.equal or t.continued for t in named):
            wrong = "the resumed training does not match an uninterrupted one bit for bit"
        elif not all(t.blamed == t.rank for t in named):
            wrong = "the named rank is not the rank that was broken"

        def values(attempt: int, named: Sequence[Trial] = named) -> Values:
            def each(read: Callable[[Trial], float | None]) -> tuple[float, ...]:
                readings = (read(t) for t in named if t.attempt == attempt)
                return tuple(value for value in readings if value is not None)

            return {
                "recovery_s": each(lambda t: t.recovery_s),
                "checkpoint_stall_s": each(lambda t: t.stall_s),
                "checkpoint_bandwidth": each(lambda t: t.bytes / t.save_s if t.save_s else None),
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
