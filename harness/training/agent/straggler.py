"""A rank that is slow on purpose: a share of a core by quota, or by stopping and continuing it."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from harness.training.observe import threads

#: One turn of computing and standing still: shorter than most steps.
PERIOD_S = 0.02
#: Where processes are put for a quota, and the file that takes it: cgroup v2, then v1.
GROUPS = (
    (Path("/sys/fs/cgroup"), "cpu.max", "{quota} {period}"),
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "{quota}"),
)


class Straggler:
    """A process that gets ``share`` of its core's time until ``release``; ``way`` says how."""

    def __init__(
        self, pid: int, share: float, groups: Sequence[tuple[Path, str, str]] = GROUPS
    ) -> None:
        self.pid = pid
        self._helper = 0
        self._group = next(filter(None, (_limited(pid, share, *group) for group in groups)), None)
        self.way = "quota" if self._group is not None else "duty cycle"
        if self._group is None:
            self._helper = _fork_duty(pid, share)

    def release(self) -> None:
        """Let it run, so that what it was at can be seen."""
        if self._helper:
            os.kill(self._helper, signal.SIGKILL)
            os.waitpid(self._helper, 0)
            self._helper = 0
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Leave nothing behind, once the process has ended."""
        self.release()
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.rmdir()


def _limited(pid: int, share: float, root: Path, file: str, form: str) -> Path | None:
    """A group of its own with a quota, or None where this user may not make one."""
    group = root / f"scaleproof-{pid}"
    period = round(PERIOD_S * 1e6)
    if not (root / "cgroup.procs").is_file():
        return None
    for stale in root.glob("scaleproof-*"):  # of agents that were killed: empty ones go
        with contextlib.suppress(OSError):
            stale.rmdir()
    try:
        group.mkdir()
        if "{period}" not in form:
            _tell(group / "cpu.cfs_period_us", str(period))
        _tell(group / file, form.format(quota=round(share * period), period=period))
        _tell(group / "cgroup.procs", str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group


def _tell(file: Path, text: str) -> None:
    """Write to a file of the kernel's; OSError where there is none."""
    with file.open("r+", encoding="utf-8") as handle:
        handle.write(text)


def _fork_duty(pid: int, share: float) -> int:
    """A child that stops and continues the process for as long as we are there."""
    parent = os.getpid()
    helper = os.fork()
    if helper:
        return helper
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threads.die_with_parent(parent)
        threads.precise_sleep()
        while True:
            os.kill(pid, signal.SIGCONT)
            time.sleep(share * PERIOD_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep((1 - share) * PERIOD_S)
    finally:
        os._exit(0)
