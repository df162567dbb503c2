"""Counters of the kernel: bytes on sockets, bytes past them, and CPU time of a window."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from harness.host import cores, machine, ranks
from harness.host.cores import RunQueue
from harness.training.observe.clock import Stamps

# Offsets in struct tcp_info (Linux >= 4.19); the returned length is checked before use.
_ACKED = 120
_RETRANSMITTED = 208
_NEEDED = 216
_SIOCOUTQ = 0x5411
#: How often a socket is read again that is acknowledged while it is read.
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes since the sockets were opened."""

    sent_bytes: int
    resent_bytes: int

    def since(self, before: Wire) -> Wire:
        """The difference to an earlier reading."""
        return Wire(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            resent_bytes=self.resent_bytes - before.resent_bytes,
        )

    def __add__(self, other: Wire) -> Wire:
        """Both together."""
        return Wire(
            sent_bytes=self.sent_bytes + other.sent_bytes,
            resent_bytes=self.resent_bytes + other.resent_bytes,
        )


def read() -> Wire | None:
    """All TCP sockets of this process; None where the kernel does not say."""
    sent = resent = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue  # closed since it was listed
        with socket.socket(fileno=duplicate) as sock:
            if (
                sock.family not in (socket.AF_INET, socket.AF_INET6)
                or sock.type != socket.SOCK_STREAM
            ):
                continue
            try:
                of_one = _written(sock)
            except OSError:
                return None
            if of_one is None:
                return None
            sent = sent + of_one[0]
            resent = resent + of_one[1]
    return Wire(sent_bytes=sent, resent_bytes=resent)


def _queued(sock: socket.socket) -> int:
    """Bytes that wait to be sent or acknowledged; one that only listens has none."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, _SIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0


def _written(sock: socket.socket) -> tuple[int, int] | None:
    """Bytes written to a socket, and bytes sent again; None where the kernel does not say."""
    acked = -1
    for _ in range(_TRIES):
        queued = _queued(sock)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) < _NEEDED:
            return None
        before = acked
        acked = struct.unpack_from("Q", info, _ACKED)[0]
        if not queued or acked == before:
            break
    return acked + queued, struct.unpack_from("Q", info, _RETRANSMITTED)[0]


#: Shared with the kernel alone: libuv submits its reads and writes of sockets through it.
KERNELS_OWN = "anon_inode:[io_uring]"
#: Descriptors that a process prints to.
OUTPUT = (1, 2)
#: How much of what was printed is looked at.
MOST_READ = 1 << 26


def written_bytes() -> int | None:
    """Bytes that this process passed to write calls so far, sockets included; None if untold."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), None)


def printed() -> Mapping[tuple[int, int], tuple[int, int]]:
    """Files that this process prints to: device and inode -> descriptor and size."""
    sizes = {}
    for descriptor in OUTPUT:
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            sizes[status.st_dev, status.st_ino] = descriptor, status.st_size
    return sizes


def repeated_bytes(before: Mapping[tuple[int, int], tuple[int, int]]) -> int:
    """Of what was printed since then, bytes that say nothing: what compressing it saves.

    Warnings that are repeated hand on no gradients; gradients do not compress.
    """
    saved = 0
    for file, (descriptor, size) in printed().items():
        _, start = before.get(file, (descriptor, 0))
        try:
            text = os.pread(descriptor, min(size - start, MOST_READ), start)
        except (OSError, ValueError):  # it can't be read, or is shorter than it was
            continue
        saved += max(0, len(text) - len(zlib.compress(text, 1)))
    return saved


def helpers_cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds so far of processes that work for this one, and of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(ranks.cpu_s, pids))


def shared_memory(helpers: Sequence[int] = ()) -> frozenset[str]:
    """Writable memory that this process shares with others, by what it is a map of.

    But for that which its ``helpers`` made: a DataLoader's workers hand over batches in it, and
    wait for each other by semaphores.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    fields = [line.split(None, 5) for line in lines if KERNELS_OWN not in line]
    prefixes = tuple(f"/dev/shm/torch_{pid}_" for pid in helpers)
    prefixes += ("/dev/shm/sem.",) if helpers else ()
    return frozenset(
        field[5].strip()
        for field in fields
        if len(field) > 5
        and field[1][1] == "w"
        and field[1][3] == "s"
        and not field[5].startswith(prefixes)
    )


@dataclass(frozen=True, kw_only=True)
class MeterReading:
    """Counters at one moment, or what they grew by; None where the kernel does not say.

    ``kernel_s`` and ``own_s`` are the kernel's clock and the rank's at that moment.
    """

    kernel_s: float
    own_s: float
    cpu_s: float
    busy_s: float | None
    throttled_s: float | None
    written_bytes: int | None
    wire: Wire | None
    queue: RunQueue | None = None
    waited_s: float | None = None


class Meter:
    """Reads at ``start``, at ``stop``, and once more when all that was sent is acknowledged.

    ``clock`` is the one that times the window, in s; ``helpers`` are processes that work for this
    one, as it does.
    """

    def __init__(
        self, clock: Callable[[], float], helpers: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self._helpers = helpers
        self._cores = os.sched_getaffinity(0)
        self._stamps = Stamps()
        self._clock = clock
        self._printed = printed()
        self._before = self._at_end = self.start()

    def start(self) -> MeterReading:
        """The kept window begins; also its own warm-up."""
        wire = read()
        written = written_bytes()
        self._printed = printed()
        self._before = replace(self._now(), wire=wire, written_bytes=written)
        return self._before

    def stop(self) -> None:
        """The last step is over."""
        self._at_end = self._now()

    def grown(self) -> MeterReading:
        """The growth of the counts in between; bytes up to now."""
        before = self._before
        end = self._at_end
        wire = read()
        written = written_bytes()
        return MeterReading(
            kernel_s=end.kernel_s - before.kernel_s,
            own_s=end.own_s - before.own_s,
            cpu_s=end.cpu_s - before.cpu_s,
            waited_s=cores.waited(before.queue, end.queue, end.cpu_s - before.cpu_s),
            busy_s=_since(before.busy_s, end.busy_s),
            throttled_s=_since(before.throttled_s, end.throttled_s),
            written_bytes=None
            if written is None or before.written_bytes is None
            else written - before.written_bytes - repeated_bytes(self._printed),
            wire=None if wire is None or before.wire is None else wire.since(before.wire),
        )

    def _now(self) -> MeterReading:
        kernel_s, own_s = self._stamps.with_clock(self._clock)
        return MeterReading(
            queue=cores.read(),
            busy_s=machine.busy_s(self._cores),
            throttled_s=cores.throttled_s(),
            cpu_s=process_time() + helpers_cpu_s(self._helpers()),
            kernel_s=kernel_s,
            own_s=own_s,
            written_bytes=None,
            wire=None,
        )


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
