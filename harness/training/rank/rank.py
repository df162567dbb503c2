"""Run one rank of a launch, from its first line of code to its result file.

Every launch engine (local agents, torchrun, Slurm, ..) starts its ranks through this module.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from harness.base.documents import to_doc
from harness.launch.wire import evidence
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import Break, LaunchSpec, RankError, Script
from harness.record.store import write_text
from harness.training.contract import placed, placed_below
from harness.training.observe import collectives, threads
from harness.training.rank import tasks
from harness.training.rank.joining import reports_peer
from harness.training.rank.setup import RankPlace, set_up
from harness.training.rank.tasks import script
from harness.training.script import workplace

#: The module of each task by the tag of its message type. Each module has two functions:
#: ``prepare``, which is called before the process group exists, and ``run``.
TASKS: Mapping[str, ModuleType] = {
    file.name: importlib.import_module(f"{tasks.__name__}.{file.name}")
    for file in pkgutil.iter_modules(tasks.__path__)
}
#: Number of file descriptors that are held open as a reserve. They are closed when the rank fails.
#: A rank that has run out of descriptors can then still write its error file.
SPARE_FILES = 8


def run_rank(spec: LaunchSpec, place: RankPlace, beats: Beats) -> int:
    """Run the task of this launch in this process, and return the exit code.

    The code is 0 if the rank has written its result file, and 1 if it has written an error file.
    """
    folder = Path(spec.out)
    if place.parent:
        threads.die_with_parent(place.parent)
    log = os.open(folder / f"rank{place.rank}.log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    spares = [os.open(os.devnull, os.O_RDONLY) for _ in range(SPARE_FILES)]
    faulthandler.enable()
    stack_file = folder / f"rank{place.rank}.stack"
    flight_file = folder / f"rank{place.rank}.flight.json"
    backend = spec.case.backend
    with stack_file.open("w", encoding="utf-8") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        try:
            workplace.protect(spec, place.node)  # before there are several threads
            collectives.dump_when_asked(flight_file, backend)
            collectives.dump_before_end(flight_file, backend)
            if isinstance(spec.task, Script | Break):
                script.work(spec, place, beats, lambda: leave(_tidy(folder, place.rank)))
            else:
                _work(spec, place, beats)
        except BaseException as error:
            text = traceback.format_exc()
            failure = RankError.of(error, _message(error, spec, place), text)
            failure = replace(failure, peer=reports_peer(failure.message))
            for spare in spares:
                os.close(spare)
            write_text(folder / f"rank{place.rank}.error.json", json.dumps(to_doc(failure)))
            collectives.dump(flight_file, backend)
            sys.stderr.write(failure.traceback)
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            evidence.settle(folder / f"rank{place.rank}.log")
    return _tidy(folder, place.rank)


def _message(error: BaseException, spec: LaunchSpec, place: RankPlace) -> str:
    """Return the message of an error with the source line that raised it.

    The line is in one of the case's files, or in a file below the folder of a user's script.
    """
    if spec.case.script:
        line = placed_below(error, workplace.of(spec, place.node))
    else:
        line = placed(error, spec.files)
    return line.removeprefix(f"{type(error).__name__}: ")


def _tidy(out: Path, rank: int) -> int:
    """Remove the files that only matter after an error, and return the exit code 0."""
    (out / f"rank{rank}.stack").unlink(missing_ok=True)
    log = out / f"rank{rank}.log"
    if log.is_file() and log.stat().st_size == 0:
        log.unlink()
    return 0


def _work(spec: LaunchSpec, place: RankPlace, beats: Beats) -> None:
    """Set the rank up, run its task, write its result file, and wait for all other ranks."""
    task = TASKS[str(type(spec.task).__struct_config__.tag)]
    prepare: Callable[[Path], None] = lambda nccl_log: task.prepare(spec, nccl_log)  # noqa: E731
    rank = set_up(spec, place, beats, prepare)
    document = task.run(spec.task, rank)
    write_text(rank.file("json"), json.dumps(to_doc(document)))
    rank.meet.part()
    rank.beat(Phase.DONE)


def leave(code: int) -> NoReturn:
    """End this process immediately, without the interpreter's teardown.

    Tearing torch down takes a third of a second, and the measurement does not need it.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
