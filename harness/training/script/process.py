"""Set up a rank's process as a launcher would: environment variables, arguments and folder."""

import functools
import gc
import hashlib
import inspect
import os
import random
import re
import runpy
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.base import programs
from harness.base.errors import LaunchError
from harness.cases import typed
from harness.cases.script import ScriptCommand, parse
from harness.host import secrets
from harness.launch.wire.messages import Break, LaunchSpec, Script
from harness.record.store import write_text
from harness.training.rank.setup import RankPlace
from harness.training.script import startup, workplace
from harness.training.script.startup import write_guard

#: Placeholders in a command: the number of ranks on this node (``ranks``) and in the world
#: (``world``), the index of this node (``node``), the number of nodes (``nodes``), and the address
#: of the first node (``host``) with a free port there (``port``), where ranks can meet.
ASKED = re.compile(r"\{(ranks|world|node|nodes|host|port)\}")
#: Environment variable that stops an interpreter from writing compiled modules next to sources.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
#: An error quotes at most this number of characters of the last line of a script or a launcher.
QUOTED = 160
#: The first line that torch's launcher writes about a failed rank.
LAUNCHER = re.compile(r"^E\d{4} .*\] failed \(exitcode.*$", re.M)
#: Lines that explain how to see more of an error. They are not the error itself.
HINT = re.compile(r"HYDRA_FULL_ERROR|--help|^For more (information|details)|^At:$", re.IGNORECASE)
#: Python's warnings with the source line below them. Some of them report leaked semaphores at exit.
WARNING = re.compile(r"^.*\b\w*Warning: .*\n?([ \t]+.*\n?)?", re.M)
#: The class name in front of an error of this package. It is removed, because the message suffices.
OURS = re.compile(r"^harness\.base\.errors\.\w+: ")


def command_of(spec: LaunchSpec, place: RankPlace, store: dist.TCPStore) -> ScriptCommand:
    """Return the command of this rank or of the launcher, with placeholders filled in."""
    assert isinstance(spec.task, Script | Break)
    words = spec.task.words if isinstance(spec.task, Break) else spec.case.script
    command = parse(shlex.split(words), Path(spec.task.folder))
    # ``parse`` may have added placeholders to a launcher's command, for example to replace a fixed
    # port by a free one.
    known = _known(spec, place, store, " ".join((*command.launcher, *command.args)))

    def filled(asked: Sequence[str]) -> tuple[str, ...]:
        return tuple(_fill(word, known) for word in asked)

    return replace(command, args=filled(command.args), launcher=filled(command.launcher))


def fill_files(spec: LaunchSpec, place: RankPlace, store: dist.TCPStore, folder: Path) -> None:
    """Fill in the placeholders of the configuration files that the command names.

    A user may describe the world in such a file. With ``--clean`` the file is the user's original,
    so the function raises LaunchError instead of changing it.
    """
    words = spec.task.words if isinstance(spec.task, Break) else spec.case.script
    for path in typed.described_in(shlex.split(words), folder):
        if not path.resolve().is_relative_to(folder.resolve()):
            continue  # the file is outside the launch's copy of the folder
        if isinstance(spec.task, Script) and spec.task.clean:
            raise LaunchError(
                f"{path.name} contains placeholders for ranks, but --clean uses the original file,"
                " which must not be changed",
                where=str(folder),
                expected="a copy of the folder for every launch",
                fix="leave --clean out",
            )
        text = path.read_text(errors="replace", encoding="utf-8")
        write_text(path, _fill(text, _known(spec, place, store, text)))


def _fill(text: str, known: Mapping[str, str | int]) -> str:
    return ASKED.sub(lambda m: str(known[m[1]]), text)


def _known(
    spec: LaunchSpec, place: RankPlace, store: dist.TCPStore, text: str
) -> Mapping[str, str | int]:
    """Return the values of the placeholders in this launch and on this node."""
    known: dict[str, str | int] = {
        "ranks": spec.case.nodes[place.node],
        "world": place.world_size,
        "node": place.node,
        "nodes": len(spec.case.nodes),
        "host": store.host,
    }
    if "{port}" in text:
        if place.rank == 0 and not store.check(["port"]):
            store.set("port", str(_free_port(store.host)))
        known["port"] = int(store.get("port"))
    return known


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.bind((host, 0))
        return int(held.getsockname()[1])


def variables(spec: LaunchSpec, place: RankPlace, host: str, port: int) -> Mapping[str, str]:
    """Return the environment variables that torchrun sets, and those of Slurm and MPI.

    Variables of Slurm and MPI are replaced only if they are set. They then describe the agent,
    which Slurm or MPI has started, and not the rank. Ranks meet at the store that the agent opened,
    so no two processes compete for a port.
    """
    local = spec.case.nodes[place.node]
    places = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(place.node),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": spec.launch,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": str(len(place.cpus)),
    }
    others = {name: of for places_of in typed.PLACES.values() for name, of in places_of.items()}
    return places | {name: places[of] for name, of in others.items() if name in os.environ}


def settle(spec: LaunchSpec, place: RankPlace, host: str, port: int) -> None:
    """Set the environment variables, cores and threads of this process."""
    os.environ.update(variables(spec, place, host, port))
    of_folders = workplace.variables(spec, place.node)
    os.environ.update(of_folders)
    tempfile.tempdir = None  # makes ``tempfile`` read TMPDIR again
    # Interpreters that this process starts, such as DataLoader workers, find ``startup`` on this
    # path and install the write guard, too.
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(startup.FOLDER), *filter(None, named)])
    write_guard.install(of_folders[write_guard.WRITABLE].split(os.pathsep))
    meet_at(host, port)
    os.sched_setaffinity(0, place.cpus)
    torch.set_num_threads(len(place.cpus))


def meet_at(host: str, port: int) -> None:
    """Make all ranks meet at the launch's store, even if the script names another rendezvous.

    The script may name a fixed port, the address of another machine, or a file that exists since
    the previous launch.
    """
    join: Callable[..., Any] = dist.init_process_group

    @functools.wraps(join)
    def joined(*args: Any, **more: Any) -> None:
        os.environ.update({"MASTER_ADDR": host, "MASTER_PORT": str(port)})
        given = inspect.signature(join).bind(*args, **more)
        if given.arguments.get("init_method"):
            given.arguments["init_method"] = "env://"
        join(*given.args, **given.kwargs)

    dist.init_process_group = joined


def last_line(log: Path) -> str:
    """Return the last line of a script's log that states why the script ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    return last_words(log.read_text(errors="replace", encoding="utf-8"))


def last_words(text: str) -> str:
    """Return the last line of a log that states the reason of an error.

    Lines of the following kinds are skipped: hints on how to see more (hydra), indented lines below
    a message, the heading "At:" of C++ frames, warnings, and the report that torch's launcher adds
    after a failed rank.
    """
    ranks, launcher, _ = text.partition(next(iter(LAUNCHER.findall(text)), "\0"))
    text = ranks if launcher and ranks.strip() else text
    text = WARNING.sub("", text)
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    lines = [line for line in lines if any(c.isalnum() for c in line)]
    named = [line for line in lines if not line[0].isspace() and not HINT.search(line)]
    return secrets.masked(OURS.sub("", next(reversed(named or lines), "").strip()))


def source(command: ScriptCommand, folder: Path) -> str:
    """Return 16 hex digits of the SHA-256 of the script's file, or "" for a module."""
    file = folder / command.target
    if command.module or not file.is_file():
        return ""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def run(command: ScriptCommand, folder: Path, home: Path) -> None:
    """Run the script as ``python`` would in ``folder``, which is a copy of ``home``.

    Errors of the script are not caught. The random generators are seeded again, because forked
    ranks would otherwise all have the same state.
    """
    programs.without_own_folder()
    sys.path[:] = workplace.on_path(sys.path, home, folder)
    os.chdir(folder)
    random.seed()
    np.random.seed()
    torch.seed()
    gc.enable()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    if command.elsewhere:
        sys.dont_write_bytecode = True
        os.environ[NO_BYTECODE] = "1"
    sys.argv = [command.target, *secrets.filled(command.args)]
    if command.module:
        sys.path.insert(0, str(folder))
        runpy.run_module(command.target, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str((folder / command.target).parent))
    runpy.run_path(str(Path(command.target).resolve()), run_name="__main__")
