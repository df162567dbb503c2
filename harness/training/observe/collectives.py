"""Collectives that a rank issued, from torch's flight recorder."""

import ctypes
import faulthandler
import itertools
import json
import math
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.base.documents import to_doc
from harness.launch.wire.messages import Collective
from harness.record import CollectiveCount
from harness.record.store import write_text

#: A C function: Python's own handlers would run in the main thread, after the end.
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_HANDLERS: list[Any] = []  # they must outlive the signal


def dump(path: Path, backend: str) -> None:
    """Write the last collectives of this rank, every process group's own numbers beside them."""
    collectives = []
    for entry in entries(backend):
        group = entry.get("process_group") or ["", ""]
        number = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0
        collectives.append(
            Collective(
                group=str(group[0]),
                number=int(number),
                operation=name_of(entry),
                sizes=f"{entry['input_sizes']} {','.join(entry['input_dtypes'])}".strip(),
                created_s=entry["time_created_ns"] / 1e9,
            )
        )
    write_text(path, json.dumps(to_doc(tuple(collectives[-LAST:]))))


def dump_when_asked(path: Path, backend: str) -> None:
    """On SIGUSR2, also while the main thread waits inside a collective: a thread listens for it.

    And on SIGABRT, by which gloo ends a rank that got another message than it expected: maybe
    another rank's fault. To be called before any other thread exists: they all inherit that
    SIGUSR2 is blocked.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def listen() -> None:
        while signal.sigwait({signal.SIGUSR2}):
            dump(path, backend)

    threading.Thread(target=listen, name="flight", daemon=True).start()
    libc = ctypes.CDLL(None)

    def aborting(number: int) -> None:
        libc.signal(number, signal.SIG_DFL)
        dump(path, backend)
        faulthandler.dump_traceback(all_threads=True)

    _HANDLERS.append(_Handler(aborting))
    libc.signal(int(signal.SIGABRT), _HANDLERS[-1])


_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1, "Float4_e2m1fn_x2": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4,
}  # fmt: skip


#: What NCCL's entries call the operations that gloo's call by their public names.
_NAMES = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allreduce": "all_reduce",
}


#: Bytes of a collective of a few values, as of a loss; more than these are gradients or parameters.
SMALL = 64
LARGE = 1024
#: Entries that are kept: enough to count a gate's, and the last ones that tell where ranks part.
#: More would grow a rank's memory for as long as they are new.
COUNTED = 20_000
LAST = 200


def enable(num_entries: int) -> None:
    """Switch the recorder on; before the first process group of this process."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(num_entries)


def entries(backend: str) -> list[dict[str, Any]]:
    """The recorder's entries, oldest first. NCCL has one of its own; gloo's is the generic one."""
    dump: Any = torch._C._distributed_c10d
    read = dump._dump_nccl_trace_json if backend == "nccl" else dump._dump_fr_trace_json
    return list(json.loads(read()).get("entries", []))


def name_of(entry: dict[str, Any]) -> str:
    """An entry's operation by its public name, without the backend's."""
    name = str(entry["profiling_name"]).split(":", 1)[-1].split(" ")[0]
    return _NAMES.get(name, name)


def mark(backend: str) -> int:
    """A position in the recorder to count from."""
    return len(entries(backend))


def since(position: int, backend: str) -> Mapping[str, CollectiveCount]:
    """Collectives issued after ``mark``: operation -> count and input bytes of this rank."""
    return _totals(entries(backend)[position:])


def between(backend: str, begin_ns: int, end_ns: int) -> Mapping[str, CollectiveCount]:
    """Totals the collectives of a time by the wall clock, among the entries that are kept."""
    return _totals(
        [entry for entry in entries(backend) if begin_ns <= entry["time_created_ns"] < end_ns]
    )


def small(backend: str, begin_ns: int, end_ns: int) -> int:
    """How many of them carry single values: no gradient, but a loss, a norm or a flag. What is
    broadcast may be a buffer, as of batch norm.
    """
    issued = [entry for entry in entries(backend) if begin_ns <= entry["time_created_ns"] < end_ns]
    return sum(0 < _payload(e) <= SMALL and name_of(e) != "broadcast" for e in issued)


def within(backend: str, spans_ns: Iterable[tuple[int, int]], only: str = "") -> int:
    """Bytes of the collectives within these times, of one operation ``only`` or of all but
    broadcasts, as of DDP's buffers.
    """
    records = [
        record
        for record in entries(backend)
        if (name_of(record) == only if only else name_of(record) != "broadcast")
    ]
    return sum(
        _payload(record)
        for begin, end in spans_ns
        for record in records
        if begin <= record["time_created_ns"] < end
    )


def exchanged(backend: str, edges_ns: Sequence[int]) -> list[int]:
    """Bytes of each step's collectives that carry more than a few values.

    ``edges_ns`` are the times at which steps begin, and the end. Steps of which the recorder has
    not kept the beginning are left out.
    """
    records = entries(backend)
    oldest = records[0]["time_created_ns"] if records else 0
    whole = [pair for pair in itertools.pairwise(edges_ns) if pair[0] >= oldest]
    large = [
        (record["time_created_ns"], size)
        for record in records
        if (size := _payload(record)) > LARGE
    ]
    return [sum(size for at, size in large if a <= at < b) for a, b in whole]


def _payload(entry: dict[str, Any]) -> int:
    """Input bytes of one collective."""
    sizes, kinds = entry["input_sizes"], entry["input_dtypes"]
    return sum(math.prod(size) * _BYTES[kind] for size, kind in zip(sizes, kinds, strict=False))


def _totals(collectives: list[dict[str, Any]]) -> Mapping[str, CollectiveCount]:
    totals: dict[str, tuple[int, int]] = {}
    for entry in collectives:
        name = name_of(entry)
        if name == "recv":
            continue  # the other end's send
        count, seen = totals.get(name, (0, 0))
        totals[name] = (count + 1, seen + _payload(entry))
    return {
        name: CollectiveCount(count=c, payload_bytes=b) for name, (c, b) in sorted(totals.items())
    }
