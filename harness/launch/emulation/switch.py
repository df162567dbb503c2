"""A switch in user space that delays the packets of an emulated network.

    python -m harness.launch.emulation.switch '{"pids": .., "own": .., "delay_ms": .., ..}'

The switch opens a TUN device in the network namespace of each process and prints ``ready``. A
packet leaves at the rate of the sender's link, travels for the delay of the path, and arrives at
the rate of the receiver's link.
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
#: Largest size of a packet in bytes. It is large enough for Python to keep up with 1 Gbit/s, and
#: small enough for slow links.
MTU = 9000
# Constants of the Linux system calls setns, ioctl and prctl.
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_PR_SET_TIMERSLACK = 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def open_device(pid: int) -> int:
    """Open a TUN device in the network namespace of a process, and return its descriptor.

    This process moves to that namespace and stays there. Raise OSError without access to it.
    """
    with Path(f"/proc/{pid}/ns/net").open(encoding="utf-8") as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"no access to the network namespace of pid {pid}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _TUN_WITHOUT_HEADER))
    return device


class Switch:
    """A switch that carries packets between devices; device i has address ``10.77.0.(i + 1)``.

    ``rates`` holds the rate of each device's link in B/s. ``between`` maps pairs of devices to a
    lower rate of their path in B/s. ``delay_s`` is the one-way delay from each device to each
    other, in seconds.
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
        # The time until which each sender, receiver and slow path is busy with earlier packets.
        self.sent = [0.0] * len(rates)
        self.received = [0.0] * len(rates)
        self.passed = dict.fromkeys(between, 0.0)
        self.travelling: list[tuple[float, int, bool, int, bytes]] = []
        self.count = 0

    def take(self, source: int, packet: bytes, now: float) -> None:
        """Accept a packet from a device and schedule its arrival; drop what is not IPv4."""
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
        """Deliver the packets that are due by ``now``.

        Return the seconds until the next packet is due, or None if no packet is travelling.
        """
        while self.travelling and self.travelling[0][0] <= now:
            arrives, count, received, target, packet = heapq.heappop(self.travelling)
            if not received:  # packets that arrive together use the receiver's link one by one
                due = max(arrives, self.received[target] + len(packet) / self.rates[target])
                self.received[target] = due
                heapq.heappush(self.travelling, (due, count, True, target, packet))
                continue
            try:
                os.write(self.devices[target], packet)
            except OSError:  # the device is down, so the packet is lost as on a real network
                continue
        return self.travelling[0][0] - now if self.travelling else None

    def run(self) -> None:
        """Carry packets until the process is killed."""
        number = {device: i for i, device in enumerate(self.devices)}
        while True:
            wait_s = self.deliver(time.monotonic())
            ready, _, _ = select.select(self.devices, [], [], wait_s)
            for device in ready:
                while True:
                    try:
                        packet = os.read(device, MTU + 100)
                    except OSError:  # no more packets are waiting, or the device is down
                        break
                    self.take(number[device], packet, time.monotonic())


def main(text: str) -> None:
    """Run the switch that a JSON document describes (see the docstring of this module)."""
    plan = json.loads(text)
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the default lets timers fire 50 us late
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
