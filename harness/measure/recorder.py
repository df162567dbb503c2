"""The program that writes the record of a training that measured itself.

    python -m harness.measure.recorder FOLDER

FOLDER contains the files that the ranks of the training wrote, and ``recorded.json``. The record
has the usual form: one plan with one arm, one launch, and a chain. It has no baseline, so it
contains no verdict on scaling.
"""

import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.judging.contrast_data import absolute
from harness.analysis.reading import LIBRARY
from harness.analysis.samples import figures
from harness.base.documents import from_doc
from harness.base.errors import ScaleproofError
from harness.cases import Arm, Catalogue, Plan, Protocol, Role, Settings
from harness.launch.wire import messages
from harness.launch.wire.messages import Recorded
from harness.measure.run import Run
from harness.record import (
    Described,
    LaunchRecord,
    LaunchStatus,
    Purpose,
    RankRecord,
    RunRecord,
)
from harness.record.launch import Cause
from harness.record.store import load_samples

#: The note that the record contains instead of a verdict.
NOTE = (
    "recorded by the training itself: one launch and no smaller world to compare it with, so"
    " nothing here is a verdict on scaling (scaleproof run --script measures one)"
)
#: Metrics that a single launch has without a baseline.
METRICS = ("throughput", "peak_bytes")


def write(folder: Path) -> tuple[Path, RunRecord]:
    """Write the record of the training in a folder; return the record and its folder."""
    recorded_run = from_doc(
        Recorded, json.loads((folder / messages.FILE).read_text(encoding="utf-8"))
    )
    case = recorded_run.case
    settings = Settings(
        fabric=False,
        timeline=False,
        nodes=case.nodes,
        device=case.device,
        argv=recorded_run.argv,
        folder=str(Path.cwd()),
    )
    run = Run(Catalogue(), settings, Path(recorded_run.results), (), lambda: 0.0)
    run.begun_at(recorded_run.started_at, recorded_run.lasted_s)
    run.notes.append(NOTE)
    arm = Arm(name=f"@{case.world_size}", case=case, role=Role.SUBJECT)
    plan = Plan(
        name=case.id,
        arms=(arm,),
        contrasts=tuple(absolute(metric, arm.name) for metric in METRICS),
        protocol=Protocol(
            steps=recorded_run.steps, cut=recorded_run.cut, min_blocks=0, max_blocks=0, fixed=True
        ),
    )
    run.announce([plan])
    run.described[case.hash] = Described()
    run.seal()
    launch = _launch(recorded_run, plan, folder, run.folder)
    run.enter([launch])
    record = run.save(complete=True)
    run.release()
    return run.folder, record


def _launch(asked: Recorded, plan: Plan, left: Path, run: Path) -> LaunchRecord:
    """Return the only launch, and copy the files of its ranks to the folder of the run."""
    (arm,) = plan.arms
    name = f"{plan.hash[:6]}-t00-{asked.case.world_size}-0001"
    there = run / "launches" / name
    there.mkdir(parents=True)
    ranks = []
    missing = {int(rank): why for rank, why in asked.missing.items()}
    for rank in range(asked.case.world_size):
        file = left / f"rank{rank}.json"
        document = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else ""
        if not isinstance(document, dict):
            missing.setdefault(rank, document or "the rank wrote no record")
            continue
        shutil.copy(left / f"rank{rank}.npz", there)
        ranks.append(_placed(from_doc(RankRecord, document), asked.case.nodes))
        (there / f"rank{rank}.json").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    launch = LaunchRecord(
        launch=name,
        purpose=Purpose.TIMED,
        plan=plan.hash,
        arm=arm.name,
        case=arm.case.hash,
        block=0,
        turn=0,
        started_at=asked.started_at,
        wall_s=asked.lasted_s,
        agent="",
        engine=LIBRARY,
        status=LaunchStatus.FAILED if missing else LaunchStatus.OK,
        cause=_cause(missing, len(ranks)),
        ranks=tuple(ranks),
    )
    if missing:
        return launch
    samples = [load_samples(run, name, rank) for rank in ranks]
    derived = figures.figures(arm.case, None, ranks, samples, asked.cut)
    return replace(launch, **vars(derived))


def _placed(rank: RankRecord, nodes: Sequence[int]) -> RankRecord:
    """Return the record of a rank with its node and local rank; ranks are numbered node by node."""
    ends = list(itertools.accumulate(nodes))
    node = next(number for number, end in enumerate(ends) if rank.rank < end)
    return replace(rank, node=node, local_rank=rank.rank - ends[node] + nodes[node])


def _cause(missing: dict[int, str], num_measured: int) -> Cause | None:
    """Return why there are no metrics: the reason of the lowest failed rank, and the number of
    ranks.
    """
    if not missing:
        return None
    rank, reason = min(missing.items())
    others = f" ({len(missing)} ranks, {num_measured} measured)" if len(missing) > 1 else ""
    return Cause(
        rank=rank,
        kind="exit",
        message=f"{reason}{others}",
        phase="STEADY",
        step=0,
        sure=True,
    )


def main(words: Sequence[str]) -> int:
    """Write the record and print its folder; print errors to stderr."""
    try:
        folder, record = write(Path(words[0]))
    except ScaleproofError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    (launch,) = record.launches
    wrong = list(launch.wrong) if launch.cause is None else [launch.cause.message]
    for reason in wrong:
        print(f"measure_steps: {reason}", file=sys.stderr)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
