"""A process beside a world's ranks that reads their devices: clocks, power, throttling, energy.

It also holds them at a case's power cap, and takes that back when the world is over.

The agent itself may load no driver and start no thread, or it could fork no ranks.
"""

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from harness.host import nvml
from harness.launch.wire.messages import LaunchSpec, Timed, readings_file
from harness.training.observe import threads

#: Seconds between readings, of a timed and of a profiled launch.
EVERY_S = 1.0
EVERY_PROFILED_S = 0.1
#: Seconds for the last reading; a lost device may never answer.
LAST_S = 2.0
#: Seconds in which a process that was killed is gone, unless it hangs in the driver.
KILLED_S = 0.5


class Follower:
    """Follows the devices at these places until it is stopped; ``first`` is the agent's first rank.

    ``private`` are the agent's sockets.
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
                # Whoever holds a cap has to take it back, also behind an agent that was killed.
                capped = self._cap_w > 0
                threads.die_with_parent(agent, signal.SIGTERM if capped else signal.SIGKILL)
                for descriptor in private:
                    os.close(descriptor)
                self._follow(readings_file(Path(spec.out), first), places())
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _follow(self, file: Path, places: Collection[int]) -> None:
        every_s = EVERY_PROFILED_S if self._profiled else EVERY_S
        with nvml.capped_power(places, self._cap_w):
            nvml.follow(file, places, every_s, _stopped, links=self._profiled)

    def ended(self) -> bool:
        """Whether it has ended; it is asked to, and after a while it is made to."""
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
        """End it at once; what it has read is written. One that holds a cap takes that back first.

        Nobody waits for one that hangs in the driver: no signal reaches it there.
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
    """Wait for the agent's signal, for so long."""
    return signal.sigtimedwait({signal.SIGTERM}, seconds) is not None
