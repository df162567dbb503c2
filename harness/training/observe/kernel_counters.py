"""Read counters of the operating system for a window: bytes sent, bytes written, CPU time."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from harness.host import cores, machine, ranks
from harness.host.cores import RunQueue
from harness.training.observe.clock import Stamps

# Offsets in struct tcp_info (Linux >= 4.19). The returned length is checked before they are used.
_ACKED = 120
_RETRANSMITTED = 208
_NEEDED = 216
_SIOCOUTQ = 0x5411
#: Number of times that a socket is read if acknowledgements arrive while it is read.
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Wire:
    """The bytes that the sockets of a process have sent, and sent again, since they were opened."""

    sent_bytes: int
    resent_bytes: int

    def since(self, before: Wire) -> Wire:
        """Return the bytes since an earlier reading."""
        return Wire(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            resent_bytes=self.resent_bytes - before.resent_bytes,
        )

    def __add__(self, other: Wire) -> Wire:
        """Return the bytes of two periods together."""
        return Wire(
            sent_bytes=self.sent_bytes + other.sent_bytes,
            resent_bytes=self.resent_bytes + other.resent_bytes,
        )


def read() -> Wire | None:
    """Return the bytes of all TCP sockets of this process, or None if the kernel reports none."""
    sent = resent = 0
    for _, sock in _sockets():
        if not _is_tcp(sock.family, sock.type):
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


def _sockets() -> Iterator[tuple[str, socket.socket]]:
    """Yield the open sockets of this process with their inode. They are duplicates, closed here."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("socket:"):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue  # the descriptor was closed after it was listed
        with socket.socket(fileno=duplicate) as sock:
            yield target.removeprefix("socket:"), sock


def _queued(sock: socket.socket) -> int:
    """Return the bytes that wait to be sent or acknowledged, or 0 for a listening socket."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock, _SIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0


def _written(sock: socket.socket) -> tuple[int, int] | None:
    """Return the bytes that were written to a socket, and the bytes that TCP had to send again.

    Return None if the kernel does not report them.
    """
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


#: The name of a memory mapping that a process shares with the kernel only. libuv submits its socket
#: operations through it.
KERNELS_OWN = "anon_inode:[io_uring]"
#: The file descriptors of standard output and standard error.
OUTPUT = (1, 2)
#: Largest number of bytes of printed text that are examined.
MOST_READ = 1 << 26


def written_bytes() -> int | None:
    """Return the bytes that this process has written to files and sockets.

    Return None if the kernel does not report them.
    """
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), None)


def printed() -> Mapping[tuple[int, int], tuple[int, int]]:
    """Return the files that this process prints to: (device, inode) -> (descriptor, size)."""
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
    """Return the bytes that compression would save in the text that was printed since ``before``.

    These bytes cannot carry information to another process. Repeated warnings compress well, but
    gradients that a rank might print to a file do not.
    """
    saved = 0
    for file, (descriptor, size) in printed().items():
        _, start = before.get(file, (descriptor, 0))
        try:
            text = os.pread(descriptor, min(size - start, MOST_READ), start)
        except (OSError, ValueError):  # the file cannot be read, or has become shorter
            continue
        saved += max(0, len(text) - len(zlib.compress(text, 1)))
    return saved


def helpers_cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds of these helper processes, and of all children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(ranks.cpu_s, pids))


def shared_memory(helpers: Sequence[int] = ()) -> frozenset[str]:
    """Return the names of the writable memory mappings that this process shares with others.

    Mappings of its ``helpers`` are left out, because the workers of a DataLoader pass batches in
    shared memory. So are deleted semaphores of one page: the locks of Python's multiprocessing,
    which torch's compiler and DataLoaders make.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    fields = [line.split(None, 5) for line in lines if KERNELS_OWN not in line]
    prefixes = tuple(f"/dev/shm/torch_{pid}_" for pid in helpers)
    return frozenset(
        field[5].strip()
        for field in fields
        if len(field) > 5
        and field[1][1] == "w"
        and field[1][3] == "s"
        and not field[5].startswith(prefixes)
        and not _is_lock(field[0], field[5])
    )


def uncounted(helpers: Sequence[int] = ()) -> frozenset[str]:
    """Return the names of everything through which bytes can pass to other processes uncounted.

    These are shared memory and all sockets but TCP's, open or opened by Python in the meantime.
    Sockets to ``helpers`` are left out. If there are helpers, so are sockets that are closed again.
    """
    opened = frozenset() if helpers else frozenset(_opened)
    return shared_memory(helpers) | opened | frozenset(_other_sockets(helpers))


#: Kinds of sockets that Python opened since ``watch_sockets``, other than TCP's.
_opened: set[str] = set()


def watch_sockets() -> None:
    """Begin to note the sockets that Python opens. They are noted until the process ends."""

    def note(event: str, values: tuple[object, ...]) -> None:
        if event == "socket.__new__":
            _, family, kind, *_ = values
            # A family of -1 says that the socket exists already, as in ``read``.
            if family != -1 and not _is_tcp(family, kind):
                _opened.add(f"{_kind_of(family)}, opened by Python")

    sys.addaudithook(note)


def _is_tcp(family: object, kind: object) -> bool:
    """Return whether a socket's bytes are counted (``read``)."""
    # Linux adds flags to the type of a socket, above its lowest four bits.
    stream = isinstance(kind, int) and kind & 0xF == socket.SOCK_STREAM
    return stream and family in (socket.AF_INET, socket.AF_INET6)


def _kind_of(family: object) -> str:
    """Return the name of a family of sockets, such as ``unix socket``."""
    name = getattr(family, "name", "") or next(
        (f.name for f in socket.AddressFamily if f == family), str(family)
    )
    return f"{name.removeprefix('AF_').lower()} socket"


def _other_sockets(helpers: Sequence[int]) -> Iterator[str]:
    """Yield the open sockets of this process, other than TCP's and those to its helpers."""
    for inode, sock in _sockets():
        if not _is_tcp(sock.family, sock.type) and _peer(sock) not in helpers:
            yield f"{_kind_of(sock.family)} {inode}"


def _peer(sock: socket.socket) -> int:
    """Return the id of the process at the other end of a unix socket, or 0 if it is unknown."""
    try:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return 0
    return int(struct.unpack("3i", credentials)[0])


def _is_lock(addresses: str, name: str) -> bool:
    """Return whether a mapping is a semaphore of one page that no process can open by its name."""
    begin, end = (int(address, 16) for address in addresses.split("-"))
    deleted = name.startswith("/dev/shm/sem.") and name.rstrip().endswith("(deleted)")
    return deleted and end - begin <= resource.getpagesize()


@dataclass(frozen=True, kw_only=True)
class MeterReading:
    """The values of counters at one moment, or their growth between two moments.

    A counter is None if the kernel does not report it. ``kernel_s`` is the time on the kernel's
    clock, and ``own_s`` the time on the rank's clock. ``cpu_s`` is the CPU time of the rank and its
    helpers. ``busy_s`` is the time for which the rank's cores worked for any process.
    ``throttled_s`` is the time for which a CPU quota stopped the rank. ``waited_s`` is the time for
    which its threads were ready but had no core. All times are in s. ``written_bytes`` counts the
    bytes that the rank wrote to files and sockets, and ``wire`` the bytes on its sockets.
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
    """A reader of the kernel's counters at the beginning and the end of the kept window.

    ``grown`` reads the final number of bytes later, after all sent bytes have been acknowledged.
    ``clock`` is the clock that times the window, in s. ``helpers`` returns the ids of processes
    that work for this process. Their CPU time is included.
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
        """Read the counters at the beginning of the kept window.

        The constructor also calls this, so that the call at the window is not slower than usual.
        """
        wire = read()
        written = written_bytes()
        self._printed = printed()
        self._before = replace(self._now(), wire=wire, written_bytes=written)
        return self._before

    def stop(self) -> None:
        """Read the counters at the end of the last step."""
        self._at_end = self._now()

    def grown(self) -> MeterReading:
        """Return the growth of the counters over the window. Bytes are counted until this call."""
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
        """Return the current values of all counters except the bytes."""
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
    """Return the difference of two readings, or None if one is missing."""
    return None if before is None or after is None else after - before
