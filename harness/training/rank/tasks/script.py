"""Task ``script``: run a user's own training in this rank, unchanged, and watch it.

    forked     variables, a folder of its own -> hooks -> the script in this process
    fresh      the same in a new interpreter, which finds its hooks by a badge (``shepherd.py``)
    launcher   the user's own launcher starts the ranks; each finds its badge

Either way: hooks -> the window is over -> evidence -> the end.
"""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from harness.base.errors import LaunchError
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import LaunchSpec, Script
from harness.spec.script import parse
from harness.training.observe import issued
from harness.training.rank.setup import Place
from harness.training.script import process, shepherd, workplace
from harness.training.script.evidence import begin, ended_early, rank_of

#: Collectives that are kept: those of the last step are looked at.
KEPT = 2000


def work(spec: LaunchSpec, place: Place, beats: Beats, leave: Callable[[], NoReturn]) -> None:
    """Run the script until its window is over; then ``leave`` ends this process.

    Raises what the script raises, LaunchError where it ends before.
    """
    assert isinstance(spec.task, Script)
    out, command = Path(spec.out), parse(shlex.split(spec.case.script))
    issued.enable(KEPT)
    beats.write(place.rank, Phase.GROUP)
    store = place.store()
    assert isinstance(store, dist.TCPStore)
    folder = out / f"work{place.node}"
    if place.local_rank == 0:
        workplace.prepare(Path(spec.task.folder), folder, out)
        store.set(folder.name, "here")
    store.wait([folder.name])
    if spec.task.fresh or command.launcher:
        shepherd.lead(command, spec, place, beats, store)
        leave()
    rank = rank_of(spec, place, beats, store)
    process.settle(spec, place, store.host, store.port)
    rank.beat(Phase.BUILD)
    watch = begin(rank, command, "forked", leave)
    try:
        process.run(command, folder)
    except SystemExit as left:
        if left.code not in (None, 0):
            raise LaunchError(
                f"the script left with status {left.code}", where=spec.case.script,
                expected="a training", fix=f"less {out}/rank{place.rank}.log",
            ) from None  # fmt: skip
    raise ended_early(watch, spec)
