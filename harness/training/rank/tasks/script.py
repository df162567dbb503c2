"""Task ``script``: run a user's training script in this rank, unchanged, and observe it.

The script is started in one of three ways:

    forked     This process sets up the environment and a private folder, installs hooks, and runs
               the script.
    fresh      A new interpreter does the same (``shepherd.py``). A badge file tells it its rank.
    launcher   The user's launcher starts the ranks. Each of them finds its badge file.

The hooks observe the steps until the window is over. They then write the evidence, and the process
ends.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from harness.base.errors import LaunchError
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.training.observe import collectives
from harness.training.rank.setup import RankPlace
from harness.training.script import process, shepherd, workplace
from harness.training.script.evidence import begin, ended, finish_measured, rank_of

#: Number of collectives that the flight recorder keeps. Those of the last step are examined.
KEPT = 2000


def work(spec: LaunchSpec, place: RankPlace, beats: Beats, leave: Callable[[], NoReturn]) -> None:
    """Run the script until its window is over; ``leave`` then ends this process.

    Raise what the script raises, or LaunchError if the script exits with an error before that.
    """
    assert isinstance(spec.task, Script | Break)
    collectives.enable(KEPT)
    beats.write(place.rank, Phase.GROUP)
    store = place.store()
    assert isinstance(store, dist.TCPStore)
    command = process.command_of(spec, place, store)
    folder = workplace.of(spec, place.node)
    ready = f"work{place.node}"
    if place.local_rank == 0:
        workplace.prepare(spec, place.node)
        process.fill_files(spec, place, store, folder)
        store.set(ready, "here")
    store.wait([ready])
    if spec.task.fresh or command.launcher:
        shepherd.lead(command, spec, place, beats, store)
        leave()
    rank = rank_of(spec, place, beats, store)
    process.settle(spec, place, store.host, store.port)
    rank.beat(Phase.BUILD)
    watch = begin(rank, command, "forked", leave)
    try:
        process.run(command, folder, Path(spec.task.folder))
    except Exception:  # an error in the script
        finish_measured(watch)
        raise
    except SystemExit as left:
        finish_measured(watch)
        if left.code not in (None, 0):
            log = Path(spec.out) / f"rank{place.rank}.log"
            status = left.code if isinstance(left.code, int) else 1
            last = process.last_line(log) or "it printed nothing"
            if isinstance(left.code, str):  # a message that the interpreter would print at exit
                last = left.code
            raise LaunchError(
                f"the script left with status {status}: {last}",
                where=spec.case.script,
                expected="a script that trains",
                fix=f"less {log}",
            ) from None
    ended(watch, spec, leave)
