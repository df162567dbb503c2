"""The agent: the process on each node that has torch in memory and forks the ranks."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path


def other_threads() -> Mapping[str, str]:
    """Return the names of all threads of this process except the main one, by thread id."""
    others = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
    return {
        thread: Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").strip()
        for thread in others
    }


#: Maps ids to names of threads that a tool such as Nsight Systems started in this process before
#: the process ran any code. They are allowed, because a tool that injects itself into every process
#: must survive a fork. Threads that Python started are excluded, because a ``sitecustomize`` may
#: have started them.
INJECTED = {
    thread: name
    for thread, name in other_threads().items()
    if int(thread) not in {python.native_id for python in threading.enumerate()}
}


def started_threads() -> list[str]:
    """Return the names of the threads that this program or its imports have started.

    Threads of a tool are left out. A tool may start its threads again, with other ids, in a forked
    process. These are recognised by their names. A name that is also the name of the process
    identifies no thread of a tool.
    """
    process = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    names = {name for name in INJECTED.values() if name != process}
    return sorted(
        name
        for thread, name in other_threads().items()
        if thread not in INJECTED and name not in names
    )
