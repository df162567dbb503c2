"""How long this process's threads were ready to run and waited for a core, as the kernel counts."""

from pathlib import Path
from typing import NamedTuple

TASKS = Path("/proc/self/task")
#: CPU time of threads that ended is the process's alone: more than this share, and what they waited
#: is not known.
UNSEEN = 0.02
#: The kernel adds a running thread's time up at ticks: its last part is not seen yet.
TICK_S = 0.01


class RunQueue(NamedTuple):
    """By thread: seconds on a core, and seconds ready but waiting for one."""

    cpu_s: dict[str, float]
    waited_s: dict[str, float]


def read(tasks: Path = TASKS) -> RunQueue | None:
    """All threads of this process; None where the kernel does not say (``CONFIG_SCHED_INFO``)."""
    cpu_s: dict[str, float] = {}
    waited_s: dict[str, float] = {}
    for task in tasks.glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = task.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue  # it has just ended
        cpu_s[task.parent.name] = int(ran_ns) / 1e9
        waited_s[task.parent.name] = int(waited_ns) / 1e9
    return RunQueue(cpu_s, waited_s) if cpu_s else None


def waited(before: RunQueue | None, after: RunQueue | None, cpu_s: float) -> float | None:
    """Seconds that threads waited in between, all of them added up.

    None where threads that are gone did a part of the ``cpu_s`` of this process: nobody knows how
    long these waited.
    """
    if before is None or after is None:
        return None
    seen_s = sum(ran - before.cpu_s.get(thread, 0.0) for thread, ran in after.cpu_s.items())
    if seen_s < (1 - UNSEEN) * cpu_s - TICK_S:
        return None
    return sum(s - before.waited_s.get(thread, 0.0) for thread, s in after.waited_s.items())
