"""A process that reads the GPUs of a world while it runs: clocks, power, throttling, energy.

It also sets the case's power cap on the GPUs, and restores the old limit when the world has ended.
It is a separate process, because the agent could not fork ranks if it loaded a driver or started a
thread.
"""

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from harness.host import nvml
from harness.launch.wire.messages import LaunchSpec, Timed, readings_file
from harness.training.observe import threads

#: Seconds between two readings in a timed launch.
EVERY_S = 1.0
#: Seconds between two readings in a profiled launch.
EVERY_PROFILED_S = 0.1
#: Seconds to wait for the last reading; a lost device may never answer.
LAST_S = 2.0
#: Seconds within which a killed process ends, unless it hangs in the driver.
KILLED_S = 0.5


class Follower:
    """A forked process that reads the devices until it is stopped.

    ``first`` is the agent's first rank, which appears in the name of the readings' file. ``places``
    returns the indices of the devices. It is called in the forked process. ``private`` are the
    agent's sockets, which the process closes.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        first: int,
        places: Callable[[], Collection[int]],
        private: Collection[int],
    ) -> None:
        self._stopped_at: float | None = None
        self._cap_w = spec.case.power_cap_w
        self._profiled = isinstance(spec.task, Timed) and spec.task.profiled > 0
        agent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._pid: int | None = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                # A process that has set a power cap must restore the old one even if the agent is
                # killed, so it gets a signal that it can handle.
                capped = self._cap_w > 0
                threads.die_with_parent(agent, signal.SIGTERM if capped else signal.SIGKILL)
                for descriptor in private:
                    os.close(descriptor)
                self._follow(readings_file(Path(spec.out), first), places())
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _follow(self, file: Path, places: Collection[int]) -> None:
        """Write readings of the devices to ``file`` until the agent's signal arrives."""
        every_s = EVERY_PROFILED_S if self._profiled else EVERY_S
        with nvml.capped_power(places, self._cap_w):
            nvml.follow(file, places, every_s, _stopped, links=self._profiled)

    def ended(self) -> bool:
        """Return whether the process has ended.

        The first call sends it SIGTERM. A later call kills it if ``LAST_S`` seconds have passed.
        """
        if self._pid is None:
            return True
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            os.kill(self._pid, signal.SIGTERM)
        if time.monotonic() - self._stopped_at > LAST_S:
            self.kill()
            return True
        if os.waitpid(self._pid, os.WNOHANG) != (0, 0):
            self._pid = None
        return self._pid is None

    def kill(self) -> None:
        """End the process immediately; it has already written its readings.

        A process that has set a power cap may restore the old cap first. This function does not
        wait for a process that hangs in the driver, because no signal reaches it there.
        """
        for number in (signal.SIGTERM, signal.SIGKILL) if self._cap_w else (signal.SIGKILL,):
            if self._pid is None:
                return
            os.kill(self._pid, number)
            deadline = time.monotonic() + KILLED_S
            while time.monotonic() < deadline:
                if os.waitpid(self._pid, os.WNOHANG) != (0, 0):
                    self._pid = None
                    break
                time.sleep(0.01)
        self._pid = None


def _stopped(seconds: float) -> bool:
    """Wait up to ``seconds`` for the agent's signal, and return whether it has arrived."""
    return signal.sigtimedwait({signal.SIGTERM}, seconds) is not None
