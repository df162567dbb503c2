"""Tidy pandas DataFrames of one or more records: launches, steps, points, verdicts, budgets.

Every row has the case, its strategy and the purpose of the launch, because arms of different
plans can have the same name although they are different trainings. The functions import pandas
themselves, so that other code does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.judging.points import points as scaling_points
from harness.analysis.reading import load
from harness.analysis.results import document, results
from harness.base.documents import to_doc
from harness.cases import CaseSpec
from harness.record import Purpose, RunRecord
from harness.record.store import load_samples

if TYPE_CHECKING:
    import pandas as pd

#: The folder of one run, or of several runs.
Runs = Path | str | Sequence[Path | str]
#: Fields of a launch's record, and of its steps, that its row contains unchanged.
_READ = ("block", "turn", "attempt", "wall_s", "throughput", "sent_bytes", "peak_bytes",
         "foreign_load", "agent")  # fmt: skip
_STEPS = ("mean_s", "median_s", "p95_s", "worst_s")


def launches(runs: Runs) -> pd.DataFrame:
    """Return one row per launch: its case, status, throughput, step times, bytes and memory."""
    return _frame(row for run, _ in _load(runs) for row in _launch_rows(run))


def steps(runs: Runs) -> pd.DataFrame:
    """Return one row per rank and step; warm-up steps have ``kept`` = False."""
    return _frame(row for run, folder in _load(runs) for row in _step_rows(run, folder))


def points(runs: Runs) -> pd.DataFrame:
    """Return one row per scaling point and kind of baseline."""
    return _frame(
        {
            **dict(run=run.run, hardware=run.machine.hardware_class, plan=plan.name),
            **_of(next(arm.case for arm in plan.arms if arm.case.id == point.case), Purpose.TIMED),
            **to_doc(point),
        }
        for run, _ in _load(runs)
        for plan in run.plans
        for against in dict.fromkeys(contrast.against for contrast in plan.contrasts)
        for point in scaling_points(run, plan, against)
    )


def verdicts(runs: Runs) -> pd.DataFrame:
    """Return one row per result: its key, judged interval, threshold and status."""
    return _frame(
        {
            **dict(run=run.run, hardware=run.machine.hardware_class),
            **_of(cases.get(result.case_hash), Purpose.TIMED),
            **document(result),
            "pairs": list(result.pairs),
            "launches": list(result.launches),
        }
        for run, _ in _load(runs)
        for cases in [_cases(run)]
        for result in results(run)
    )


def budgets(runs: Runs) -> pd.DataFrame:
    """Return one row per term of a rank's step in a profiled launch.

    The terms are in ns and sum to the step.
    """
    return _frame(
        {
            **dict(run=run.run, launch=launch.launch, arm=launch.arm),
            **_of(cases.get(launch.case), launch.purpose),
            **dict(rank=rank.rank, step=step, term=term, ns=ns),
        }
        for run, _ in _load(runs)
        for cases in [_cases(run)]
        for launch in run.launches
        if launch.budget is not None
        for rank in launch.budget.ranks
        for term, values in rank.terms.items()
        for step, ns in enumerate(values)
    )


def _load(runs: Runs) -> Iterator[tuple[RunRecord, Path]]:
    for folder in [runs] if isinstance(runs, str | Path) else runs:
        yield load(Path(folder)), Path(folder)


def _frame(rows: Iterator[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _cases(run: RunRecord) -> dict[str, CaseSpec]:
    """Return the cases of a run by hash."""
    return {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}


def _of(case: CaseSpec | None, purpose: Purpose) -> dict[str, Any]:
    """Return the columns that distinguish a row from rows of other trainings.

    A sweep of the fabric has no case.
    """
    return {
        "case": None if case is None else case.id,
        "strategy": None if case is None else case.strategy,
        "purpose": str(purpose),
    }


def _launch_rows(run: RunRecord) -> Iterator[dict[str, Any]]:
    cases = _cases(run)
    for launch in run.launches:
        case = cases[launch.case]
        yield {
            **dict(
                run=run.run,
                launch=launch.launch,
                purpose=str(launch.purpose),
                arm=launch.arm,
                case=case.id,
            ),
            **case.series,
            "status": str(launch.status),
            **{name: getattr(launch, name) for name in _READ},
            **{f"step_{name}": getattr(launch.steps, name, None) for name in _STEPS},
            "setup_s": max((rank.setup_s for rank in launch.ranks), default=None),
            "cpu_s": sum(rank.cpu_s for rank in launch.ranks),
            "planted_s": launch.ranks[0].planted_s if launch.ranks else None,
            "drift": launch.steadiness.drift if launch.steadiness else None,
        }


def _step_rows(run: RunRecord, folder: Path) -> Iterator[dict[str, Any]]:
    plans = {plan.hash: plan for plan in run.plans}
    cases = _cases(run)
    for launch in run.launches:
        if launch.steps is None:
            continue
        cut = run.window(plans[launch.plan], launch).cut
        for rank in launch.ranks:
            samples = load_samples(folder, launch.launch, rank)
            for i, (step_s, loss) in enumerate(zip(samples.step_s, samples.loss, strict=True)):
                yield dict(
                    run=run.run,
                    launch=launch.launch,
                    arm=launch.arm,
                    **_of(cases[launch.case], launch.purpose),
                    rank=rank.rank,
                    step=i,
                    kept=i >= cut,
                    step_s=float(step_s),
                    loss=float(loss),
                    rss_bytes=int(samples.rss_bytes[i]) or None,
                )
