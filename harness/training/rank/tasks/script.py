"""Task ``script``: run a user's own training in this rank, unchanged, and watch it.

variables and a folder of its own -> hooks -> the script -> its window is over -> evidence, the end
"""

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from harness.base.documents import to_doc
from harness.base.errors import LaunchError
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import LaunchSpec, Script
from harness.record.store import write_text
from harness.spec.script import Command, parse
from harness.training.accelerator import Accelerator
from harness.training.observe import beside, issued
from harness.training.observe.intake import digest
from harness.training.rank.barrier import Barrier
from harness.training.rank.setup import Laps, Place, Rank, device_of
from harness.training.script import process, workplace
from harness.training.script.watch import Watch

#: Collectives that are kept: those of the last step are looked at.
KEPT = 2000


def work(spec: LaunchSpec, place: Place, beats: Beats, leave: Callable[[], NoReturn]) -> None:
    """Run the script until its window is over; then ``leave`` ends this process.

    Raises what the script raises, LaunchError where it ends before.
    """
    assert isinstance(spec.task, Script)
    task, out, lap = spec.task, Path(spec.out), Laps()
    os.sched_setaffinity(0, place.cpus)
    torch.set_num_threads(len(place.cpus))
    accelerator = Accelerator(device_of(spec.case, place))
    if not accelerator.present:
        accelerator.select()  # CPU ranks see no GPU
    issued.enable(KEPT)
    beats.write(place.rank, Phase.GROUP)
    store = place.store()
    assert isinstance(store, dist.TCPStore)
    os.environ.update(process.variables(spec, place, store.host, store.port))
    rank = Rank(
        spec=spec, place=place, out=out, accelerator=accelerator,
        meet=Barrier(store, place.rank, place.world_size, communicate=False), lap=lap,
        tuned_threads=0, known_modules=frozenset(sys.modules), shared=beside.shared_memory(),
        beats=beats,
    )  # fmt: skip
    command, folder = parse(shlex.split(spec.case.script)), out / f"work{place.node}"
    if place.local_rank == 0:
        workplace.prepare(Path(task.folder), folder, out)
        store.set(f"work{place.node}", "here")
    store.wait([f"work{place.node}"])
    lap("files")
    rank.beat(Phase.BUILD)

    def over(watch: Watch) -> None:
        _record(watch, rank, command)
        leave()

    watch = Watch(task, rank, over)
    watch.install()
    try:
        process.run(command, folder)
    except SystemExit as left:
        if left.code not in (None, 0):
            raise LaunchError(
                f"the script left with status {left.code}", where=spec.case.script,
                expected="a training", fix=f"less {out}/rank{place.rank}.log",
            ) from None  # fmt: skip
    raise _ended_early(watch, spec)


def _record(watch: Watch, rank: Rank, command: Command) -> None:
    """Write down what this rank saw, and part from the others."""
    measured = watch.measured()
    watched, folder = watch.watched(), rank.out / f"work{rank.place.node}"
    document = rank.record(
        watch.ran(),
        watch.memory,
        measured,
        watched=replace(watched, source=process.source(command, folder)),
        grad_norm=watch.grad_norm,
        replica="" if watched.sharded else digest(iter(watch.parameters())),
    )
    write_text(rank.file("json"), json.dumps(to_doc(document)))
    rank.meet.part()
    rank.beat(Phase.DONE)


def _ended_early(watch: Watch, spec: LaunchSpec) -> LaunchError:
    """Why there is no figure of a script that has come to its end."""
    done, found = len(watch.sentences.words), watch.sentences.period(len(watch.hooks.optimizers))
    if not watch.hooks.optimizers:
        what = "the script ended, and no optimizer of torch's was made"
    elif not done:
        what = "the script ended before an optimizer had stepped twice"
    elif found is None:
        what = f"the script ended after {done} updates without a period of optimizers"
    else:
        assert isinstance(spec.task, Script)
        what = f"the script ended after {done // found} of the {spec.task.steps + 1} steps wanted"
    return LaunchError(
        what, where=spec.case.script, expected="a training that lasts longer than the window",
        fix="more epochs or data, or a smaller batch",
    )  # fmt: skip
