"""Read the collectives that a rank issued from torch's flight recorder."""

import ctypes
import faulthandler
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from harness.analysis.script.facts import totals
from harness.base.documents import to_doc
from harness.launch.wire.messages import Collective, Flight, LoopState
from harness.record import CollectiveCount
from harness.record.store import write_text

#: The type of a signal handler in C. A handler in Python would run in the main thread, which does
#: not run again when the process aborts.
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_HANDLERS: list[Any] = []  # keeps the handlers alive, because a signal may arrive at any time


def _nowhere() -> LoopState | None:
    """Return the position of a rank that runs no user's training."""
    return None


#: Returns the position of a user's training in its loop. The watch of a script replaces it.
position: Callable[[], LoopState | None] = _nowhere


def dump(path: Path, backend: str) -> None:
    """Write the last collectives of this rank, and the position of a user's training."""
    collectives = []
    for entry in entries(backend):
        group = entry.get("process_group") or ["", ""]
        number = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0
        collectives.append(
            Collective(
                group=str(group[0]),
                number=int(number),
                operation=name_of(entry),
                sizes=f"{entry['input_sizes']} {','.join(entry['input_dtypes'])}".strip(),
                created_s=entry["time_created_ns"] / 1e9,
            )
        )
    flight = Flight(collectives=tuple(collectives[-LAST:]), loop=position())
    write_text(path, json.dumps(to_doc(flight)))


def dump_when_asked(path: Path, backend: str) -> None:
    """Write the last collectives to a file whenever SIGUSR2 arrives, and on SIGABRT.

    A separate thread waits for SIGUSR2, so this works while the main thread waits inside a
    collective. SIGABRT matters because gloo aborts a rank that receives an unexpected message,
    which may be the fault of another rank. Call this before any other thread exists: SIGUSR2 must
    be blocked in all threads, and new threads inherit the blocked signals of the main thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def listen() -> None:
        """Write the collectives each time SIGUSR2 arrives."""
        while signal.sigwait({signal.SIGUSR2}):
            dump(path, backend)

    threading.Thread(target=listen, name="flight", daemon=True).start()
    libc = ctypes.CDLL(None)

    def aborting(number: int) -> None:
        """Write the collectives and the stacks of all threads before the process aborts."""
        libc.signal(number, signal.SIG_DFL)
        dump(path, backend)
        faulthandler.dump_traceback(all_threads=True)

    _HANDLERS.append(_Handler(aborting))
    libc.signal(int(signal.SIGABRT), _HANDLERS[-1])


def dump_before_end(path: Path, backend: str) -> None:
    """Write the last collectives when SIGTERM arrives, and then end by this signal.

    Launchers such as torchrun send SIGTERM to the other ranks of a world that has failed. Python
    does not run handlers while the main thread waits inside a collective, but it writes the number
    of the signal to a pipe at once, from which a separate thread reads. If the training replaces
    the handler, its own handler decides when the process ends. Call this in the main thread.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def ended(*_: object) -> None:
        """Do nothing: the thread ends the process."""

    def ours() -> bool:
        return signal.getsignal(signal.SIGTERM) is ended

    def listen() -> None:
        """Write the collectives when SIGTERM arrives, and end the process."""
        while numbers := os.read(reading, 64):
            if signal.SIGTERM in numbers:
                dump(path, backend)
                if ours():
                    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)  # the default action
                    os.kill(os.getpid(), signal.SIGTERM)

    masks = list[set[Any]]()

    def block() -> None:
        """Keep SIGTERM pending during a fork, because the new process shares the pipe at first."""
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def forget() -> None:
        """Give a forked process the default action. It has no thread that would end it."""
        signal.set_wakeup_fd(-1)
        if ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    signal.signal(signal.SIGTERM, ended)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)
    threading.Thread(target=listen, name="ended", daemon=True).start()


#: Bytes of one element by the name of its dtype in the flight recorder.
_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1, "Float4_e2m1fn_x2": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4,
}  # fmt: skip


#: Maps the names that backends give to operations in the flight recorder to public names.
_NAMES = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allreduce": "all_reduce",
}


#: Number of entries that the recorder keeps in a correctness check. They suffice to count the
#: traffic of the check.
COUNTED = 20_000
#: Number of entries that the recorder keeps in other launches. They suffice to see where ranks
#: diverge. With more entries, the memory of a rank would grow until all of them are used.
LAST = 200


def enable(num_entries: int) -> None:
    """Switch the flight recorder on. Call this before the process makes its first process group."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(num_entries)


def entries(backend: str) -> list[dict[str, Any]]:
    """Return the entries of the flight recorder, oldest first.

    NCCL has a separate recorder; gloo uses the generic one.
    """
    dump: Any = torch._C._distributed_c10d
    read = dump._dump_nccl_trace_json if backend == "nccl" else dump._dump_fr_trace_json
    return list(json.loads(read()).get("entries", []))


def name_of(entry: dict[str, Any]) -> str:
    """Return the public name of an entry's operation, without the name of the backend."""
    name = str(entry["profiling_name"]).split(":", 1)[-1].split(" ")[0]
    return _NAMES.get(name, name)


def mark(backend: str) -> int:
    """Return the current position in the recorder, from which ``since`` counts."""
    return len(entries(backend))


def since(position: int, backend: str) -> Mapping[str, CollectiveCount]:
    """Return the collectives issued after ``mark``: operation -> count and input bytes."""
    return totals([(name_of(entry), _payload(entry)) for entry in entries(backend)[position:]])


def issued(backend: str) -> list[tuple[str, int, int]]:
    """Return operation, input bytes and wall clock time in ns of the kept collectives."""
    return [
        (name_of(entry), _payload(entry), entry["time_created_ns"]) for entry in entries(backend)
    ]


def _payload(entry: dict[str, Any]) -> int:
    """Return the input bytes of one collective."""
    sizes, kinds = entry["input_sizes"], entry["input_dtypes"]
    return sum(math.prod(size) * _BYTES[kind] for size, kind in zip(sizes, kinds, strict=False))
