"""The process of each node that has torch in memory, and the ranks that it forks."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path


def other_threads() -> Mapping[str, str]:
    """Return the names of this process's threads but the first, by their ids."""
    others = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
    return {
        thread: Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").strip()
        for thread in others
    }


#: Threads that a tool had started in this process before it ran any code (Nsight Systems does). A
#: tool that injects itself into every process has to survive a fork. Threads of Python's are none
#: of these: a ``sitecustomize`` may have started some.
INJECTED = {
    thread: name
    for thread, name in other_threads().items()
    if int(thread) not in {python.native_id for python in threading.enumerate()}
}


def started_threads() -> list[str]:
    """Return the names of the threads that this program, or what it imports, has started.

    A tool may start its threads anew in a forked process: there they are known by their names,
    unless they have the process's own.
    """
    process = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    names = {name for name in INJECTED.values() if name != process}
    return sorted(
        name
        for thread, name in other_threads().items()
        if thread not in INJECTED and name not in names
    )
