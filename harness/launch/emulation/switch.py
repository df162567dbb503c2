"""A switch in user space for emulated networks with delays: packets in, later out.

    python -m harness.launch.emulation.switch '{"pids": .., "own": .., "delay_ms": .., ..}'

Opens a TUN device in the network namespace of each process and says ``ready``. A packet leaves its
sender at the rate of its link, travels, and arrives at the rate of the receiver's link.
"""

import ctypes
import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEVICE = "tun0"
#: Bytes a packet: large enough that Python keeps up with 1 Gbit/s, small enough for slow links.
MTU = 9000
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_PR_SET_TIMERSLACK = 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def open_device(pid: int) -> int:
    """A TUN device in the namespace of a process; this one stays there."""
    with Path(f"/proc/{pid}/ns/net").open(encoding="utf-8") as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"no access to the network namespace of {pid}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _TUN_WITHOUT_HEADER))
    return device


class Switch:
    """Carries packets between devices, the i-th of them at address ``10.77.0.(i + 1)``.

    ``rates`` and ``between`` are rates in B/s, ``delay_s`` the time from each node to each other.
    """

    def __init__(
        self,
        devices: Sequence[int],
        rates: Sequence[float],
        between: Mapping[tuple[int, int], float],
        delay_s: Sequence[Sequence[float]],
    ) -> None:
        self.devices = devices
        self.rates = rates
        self.between = between
        self.delay_s = delay_s
        # busy until then
        self.sent = [0.0] * len(rates)
        self.received = [0.0] * len(rates)
        self.passed = dict.fromkeys(between, 0.0)
        self.travelling: list[tuple[float, int, bool, int, bytes]] = []
        self.count = 0

    def take(self, source: int, packet: bytes, now: float) -> None:
        """Send a packet on its way."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        target = packet[19] - 1
        if not 0 <= target < len(self.devices):
            return
        size = len(packet)
        left = self.sent[source] = max(now, self.sent[source]) + size / self.rates[source]
        way = (source, target)
        if way in self.between:
            left = self.passed[way] = max(left, self.passed[way] + size / self.between[way])
        self.count += 1
        due = left + self.delay_s[source][target]
        heapq.heappush(self.travelling, (due, self.count, False, target, packet))

    def deliver(self, now: float) -> float | None:
        """Hand over what has arrived; seconds until the next packet does, None without any."""
        while self.travelling and self.travelling[0][0] <= now:
            arrives, count, received, target, packet = heapq.heappop(self.travelling)
            if not received:  # the receiver's link is shared by those that are there, in turn
                due = max(arrives, self.received[target] + len(packet) / self.rates[target])
                self.received[target] = due
                heapq.heappush(self.travelling, (due, count, True, target, packet))
                continue
            try:
                os.write(self.devices[target], packet)
            except OSError:  # its device is down: lost, as on any wire
                continue
        return self.travelling[0][0] - now if self.travelling else None

    def run(self) -> None:
        number = {device: i for i, device in enumerate(self.devices)}
        while True:
            wait_s = self.deliver(time.monotonic())
            ready, _, _ = select.select(self.devices, [], [], wait_s)
            for device in ready:
                while True:
                    try:
                        packet = os.read(device, MTU + 100)
                    except OSError:  # nothing more is there, or it is down
                        break
                    self.take(number[device], packet, time.monotonic())


def main(text: str) -> None:
    """See the top of this file."""
    plan = json.loads(text)
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else it is 50 us late
    devices = [open_device(pid) for pid in plan["pids"]]
    per_second = 1e6 / 8
    switch = Switch(
        devices,
        [mbit * per_second for mbit in plan["own"]],
        {(a, b): mbit * per_second for a, b, mbit in plan["between"]},
        [[ms / 1e3 for ms in row] for row in plan["delay_ms"]],
    )
    print("ready", flush=True)
    switch.run()


if __name__ == "__main__":
    main(sys.argv[1])
