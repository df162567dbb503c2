"""Which collective a rank is at: torch's flight recorder, written down when something breaks."""

import ctypes
import faulthandler
import json
import signal
import threading
from pathlib import Path
from typing import Any

from harness.base.documents import to_doc
from harness.launch.wire.messages import Collective
from harness.record.store import write_text
from harness.training.observe import issued

#: A C function: Python's own handlers would run in the main thread, after the end.
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_HANDLERS: list[Any] = []  # they must outlive the signal


def dump(path: Path, backend: str) -> None:
    """Write the last collectives of this rank, every process group's own numbers beside them."""
    collectives = []
    for entry in issued.entries(backend):
        group = entry.get("process_group") or ["", ""]
        number = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0
        collectives.append(
            Collective(
                group=str(group[0]),
                number=int(number),
                operation=issued.name_of(entry),
                sizes=f"{entry['input_sizes']} {','.join(entry['input_dtypes'])}".strip(),
                created_s=entry["time_created_ns"] / 1e9,
            )
        )
    write_text(path, json.dumps(to_doc(tuple(collectives[-issued.LAST :]))))


def dump_when_asked(path: Path, backend: str) -> None:
    """On SIGUSR2, also while the main thread waits inside a collective: a thread listens for it.

    And on SIGABRT, by which gloo ends a rank that got another message than it expected: maybe
    another rank's fault. To be called before any other thread exists: they all inherit that
    SIGUSR2 is blocked.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def listen() -> None:
        while signal.sigwait({signal.SIGUSR2}):
            dump(path, backend)

    threading.Thread(target=listen, name="flight", daemon=True).start()
    libc = ctypes.CDLL(None)

    def aborting(number: int) -> None:
        libc.signal(number, signal.SIG_DFL)
        dump(path, backend)
        faulthandler.dump_traceback(all_threads=True)

    _HANDLERS.append(_Handler(aborting))
    libc.signal(int(signal.SIGABRT), _HANDLERS[-1])
