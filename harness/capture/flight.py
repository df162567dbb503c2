"""Which collective a rank is at: torch's flight recorder, written down when something breaks."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

from harness.capture import issued
from harness.codec import to_doc
from harness.protocol import Collective
from harness.record import write_text

#: Entries that are kept, the last ones: ranks that stand still differ by a few.
KEPT = 200


def dump(path: Path, backend: str) -> None:
    """Write the last collectives of this rank, every process group's own numbers beside them."""
    found = []
    for entry in issued.entries(backend):
        group = entry.get("process_group") or ["", ""]
        number = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0
        found.append(
            Collective(
                group=str(group[0]),
                number=int(number),
                operation=issued.name_of(entry),
                sizes=f"{entry['input_sizes']} {','.join(entry['input_dtypes'])}",
            )
        )
    write_text(path, json.dumps(to_doc(tuple(found[-KEPT:]))))


def dump_on_signal(path: Path, backend: str) -> None:
    """On SIGUSR2, also while the main thread waits inside a collective: a thread listens for it.

    To be called before any other thread exists: they all inherit that the signal is blocked.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def listen() -> None:
        while signal.sigwait({signal.SIGUSR2}):
            dump(path, backend)

    threading.Thread(target=listen, name="flight", daemon=True).start()
