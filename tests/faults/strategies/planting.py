"""Injection of faults on one rank in one step, around any strategy.

Every step of every rank first issues three extra collectives, so that a single rank can skip or
reorder one of them, or give it another shape or dtype.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

#: The step at which the fault strikes.
STEP = 4

#: A rank's output goes to a file in the launch's folder, except while a case is described.
LOG = Path("/proc/self/fd/1").readlink()


#: Every rank starts two helpers, as a data loader would, in their own process group and session.
OWN: tuple[dict[str, Any], ...] = ({"process_group": 0}, {"start_new_session": True})


class Planted:
    """A trainer that fails on one rank."""

    def __init__(self, inner: Any, model: Any, ctx: Any, kind: str, rank: int, struck: str) -> None:
        self.inner, self.model, self.ctx, self.kind, self.struck = inner, model, ctx, kind, struck
        self.here = ctx.rank == rank
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, batch: Any) -> Any:
        self.count += 1
        strikes = self.here and self.count == STEP
        if strikes and self.struck:
            Path(self.struck).touch()  # from here on the duration of the launch counts
        if strikes and self.kind in AT_ONCE:
            AT_ONCE[self.kind]()
        self.chat(self.kind if strikes else "none")
        if strikes and self.kind == "hang_in_collective":
            dist.all_reduce(torch.zeros(7))  # no other rank joins
        if strikes and self.kind == "no_data":
            return torch.zeros(())  # the well-known dummy loss: no backward, no communication
        if strikes and self.kind == "lone_checkpoint":
            options = StateDictOptions(full_state_dict=True)
            get_model_state_dict(self.model, options=options)
        if self.here and self.kind == "slow":
            time.sleep(0.2)
        return self.inner.step(batch)

    def chat(self, kind: str) -> None:
        """Issue three collectives that differ in size."""
        sizes = [16, 32, 48]
        if kind == "skip":
            sizes = sizes[1:]
        elif kind == "reorder":
            sizes = [32, 16, 48]
        elif kind == "shape":
            sizes = [24, 32, 48]
        for size in sizes:
            odd = kind == "dtype" and size == 16
            dist.all_reduce(torch.ones(size, dtype=torch.float64 if odd else torch.float32))


def raise_() -> None:
    raise ValueError("planted")


def host_oom() -> None:
    torch.empty(1 << 60)


def device_oom() -> None:
    if torch.cuda.is_available():
        torch.empty(1 << 60, device="cuda")
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def full_disk() -> None:
    """Let a device refuse the file to which this rank's result is written first."""
    opened = Path.open

    def refused(path: Path, *args: Any, **options: Any) -> Any:
        if path.name.startswith(f".{LOG.stem}.json."):
            return opened(Path("/dev/full"), "wb")
        return opened(path, *args, **options)

    Path.open = refused  # type: ignore[method-assign]


def port_taken() -> None:
    dist.TCPStore("127.0.0.1", int(LOG.with_name("taken").read_text()), 1, True)


def cut_off() -> None:
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


def refuse(number: int) -> Callable[[], None]:
    """Raise the error of a file system with an exhausted quota or a broken disk."""

    def refused() -> None:
        raise OSError(number, os.strerror(number), "checkpoint.pt")

    return refused


def endless() -> None:
    endless()


def long_message() -> None:
    raise ValueError("planted " * (8 << 20))


def chatty() -> None:
    for _ in range(64):
        sys.stderr.write("still warming up\n" * (1 << 16))
    raise ValueError("planted")


def no_more_files() -> None:
    """Use up the file descriptors, so that not even the error can be written to a file."""
    opened = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))


def little_memory() -> None:
    """Limit the address space, as batch systems do."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    bytearray(1 << 34)


def segfault() -> None:
    ctypes.string_at(0)


def system_exit() -> None:
    sys.exit("the data set is used up")


def interrupted() -> None:
    raise KeyboardInterrupt


def hang_up() -> None:
    """Close every connection: to the peers, the agent and the store."""
    os.closerange(3, 4096)


AT_ONCE: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": raise_,
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "exit3": lambda: os._exit(3),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(3600),
    "oom": host_oom,
    "device_oom": device_oom,
    "disk": full_disk,
    "port": port_taken,
    "agent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "cut": cut_off,
    "segfault": segfault,
    "recursion": endless,
    "quota": refuse(errno.EDQUOT),
    "io_error": refuse(errno.EIO),
    "files": no_more_files,
    "long_message": long_message,
    "chatty": chatty,
    "little_memory": little_memory,
    "system_exit": system_exit,
    "interrupted": interrupted,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "hang_up": hang_up,
    "agent_stops": lambda: os.kill(os.getppid(), signal.SIGSTOP),
}


def never_joins() -> None:
    """Keep the rank that the launch's folder names from joining the process group."""
    absent = LOG.with_name("absent")
    if absent.is_file() and LOG.stem == f"rank{absent.read_text()}":
        time.sleep(3600)


never_joins()


def plant(base: ModuleType) -> tuple[Any, Any]:
    """Return ``expect`` and ``build`` of a strategy that is ``base`` with faults."""

    def expect(case: Any, model: Any, batching: Any, facts: Any, knobs: Any) -> Any:
        return base.expect(case, model, batching, facts, base.KNOBS)

    def build(model: Any, ctx: Any, knobs: Any) -> Planted:
        inner = base.build(model, ctx, base.KNOBS)
        trained = getattr(inner, "module", getattr(inner, "model", model))
        kind, rank, struck = knobs["kind"], knobs["rank"], knobs["struck"]
        if LOG.suffix == ".log":
            helpers = OWN if kind != "agent" else ()  # nobody would end a forked agent's helpers
            pids = [subprocess.Popen(["sleep", "3600"], **options).pid for options in helpers]
            for i, pid in enumerate([os.getpid(), *pids]):
                LOG.with_suffix(f".{i}.pid").write_text(str(pid))
        return Planted(inner, trained, ctx, kind, rank, struck)

    return expect, build
