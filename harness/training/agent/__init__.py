"""The process of each node that has torch in memory, and the ranks that it forks."""

import os
from pathlib import Path


def thread_names() -> list[str]:
    """Return the names of this process's threads but the first."""
    others = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
    return sorted(Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in others)


#: Threads that a tool had started in this process before it ran any code (Nsight Systems does). A
#: tool that injects itself into every process has to survive a fork, which drops its threads.
INJECTED = tuple(thread_names())
