"""NCCL on the strict device: runs over gloo, refuses host tensors, and records collectives.

It replaces torch's ``ProcessGroupNCCL``, so the harness uses ``nccl`` as always. Its entries have
the keys and names of NCCL's flight recorder (torch/csrc/distributed/c10d).
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as bound
from torch.distributed import distributed_c10d

from strict.device import NAME, UNWRAPPED, Strict
from strict.rates import QUEUE

_DTYPES = {
    torch.float64: "Double", torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.uint8: "Byte",
    torch.int8: "Char", torch.bool: "Bool",
}  # fmt: skip
ENTRIES: list[dict[str, Any]] = []
_numbers = itertools.count()


class Options:
    """Options of ``ProcessGroupNCCL``."""

    def __init__(self) -> None:
        self.is_high_priority_stream = False
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = None
        self.split_from = None
        self.split_color = 0
        self.config = None


def _record(name: str, group: Nccl, given: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    number = next(_numbers)
    keep = int(os.environ.get("TORCH_FR_BUFFER_SIZE", "0"))
    entry = {
        "record_id": number, "pg_id": 0, "process_group": (group.called, "default"),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": f"nccl:{name}", "time_created_ns": time.time_ns(),
        "input_sizes": [list(x.shape) for x in given],
        "input_dtypes": [_DTYPES.get(x.dtype, str(x.dtype)) for x in given],
        "output_sizes": [list(x.shape) for x in out],
        "output_dtypes": [_DTYPES.get(x.dtype, str(x.dtype)) for x in out],
        "state": "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": True, "timeout_ms": 600_000,
        "is_p2p": name.startswith(("send", "recv")),
        "frames": [{"name": f.name, "filename": f.filename, "line": f.lineno or 0}
                   for f in reversed(traceback.extract_stack(limit=12)[:-2])],
    }  # fmt: skip
    QUEUE.send(name, sum(x.numel() * x.element_size() for x in given), group.size())
    _log(group)
    ENTRIES.append(entry)
    if len(ENTRIES) > max(keep, 1):
        del ENTRIES[: len(ENTRIES) - keep]


#: Link between two ranks -> the transport that NCCL logs.
_WAYS = {
    "nvswitch": "P2P/CUMEM", "nvlink": "P2P/CUMEM", "pcie-peer": "P2P/IPC", "pcie-host": "SHM/direct/direct",
}  # fmt: skip
_logged: list[str] = []


def _log(group: Nccl) -> None:
    """Write a channel to NCCL's own log, if that is enabled."""
    file = os.environ.get("NCCL_DEBUG_FILE")
    if file and not _logged and group.size() > 1:
        way = _WAYS[os.environ.get("STRICT_FABRIC", "nvswitch")]
        ways = [way, *filter(None, [os.environ.get("STRICT_WAY")])]  # the second one between nodes
        line = "".join(f"Channel 00/0 : {group.rank()}[0] -> 1[1] via {w}\n" for w in ways)
        _logged.append(line)
        with Path(file).open("a", encoding="utf-8") as log:
            log.write(line)


class Nccl(dist.ProcessGroup):
    """Collectives of tensors of the device."""

    Options = Options

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        super().__init__(rank, size)
        self.called, self._size = options.group_name, size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options._timeout)
        self._register_backend(torch.device(NAME), dist.ProcessGroup.BackendType.NCCL, self._gloo)
        # torch uses a group written in Python for all devices, whatever backends were requested.
        asked = sys._getframe(1).f_locals.get("backend_config")
        self._carries_host = asked is not None and "cpu:gloo" in str(asked)

    def _set_sequence_number_for_group(self) -> None:
        return None

    def getBackendName(self) -> str:
        return "nccl"

    def _raw(self, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [self._raw(x) for x in given]
        if UNWRAPPED[0] and not isinstance(given, Strict):
            return given
        if self._carries_host and given.device.type == "cpu":
            return getattr(given, "raw", given)
        if not isinstance(given, Strict):
            raise RuntimeError(f"No backend type associated with device type {given.device.type}")
        if not given.raw.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        return given.raw

    def _done(self, tensors: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(list(tensors))
        return bound._create_work_from_future(future)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        _record("all_reduce", self, tensors, tensors)
        asked = opts or bound.AllreduceOptions()
        mean = asked.reduceOp == dist.ReduceOp.AVG
        if mean:  # gloo has no AVG
            asked.reduceOp = dist.ReduceOp.SUM
        for tensor in tensors:
            self._gloo.allreduce([self._raw(tensor)], asked).wait()
            if mean:
                self._raw(tensor).div_(self._size)
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, bound.AllreduceOptions())

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        _record("broadcast", self, tensors, tensors)
        self._gloo.broadcast(self._raw(tensors), opts or bound.BroadcastOptions()).wait()
        return self._done(tensors)

    def allgather(self, outs: Any, given: Any, opts: Any = None) -> Any:
        _record("all_gather", self, given, outs[0])
        self._gloo.allgather(
            self._raw(outs), self._raw(given), opts or bound.AllgatherOptions()
        ).wait()
        return self._done(outs[0])

    def _allgather_base(self, out: Any, given: Any, opts: Any = None) -> Any:
        _record("_all_gather_base", self, [given], [out])
        self._gather(out, given)
        return self._done([out])

    def _gather(self, out: Any, given: Any) -> None:
        options = bound.AllgatherOptions()
        self._gloo._allgather_base(self._raw(out), self._raw(given), options).wait()

    def allgather_into_tensor_coalesced(self, outs: Any, given: Any, opts: Any = None) -> Any:
        for out, whole in zip(outs, given, strict=True):
            _record("_all_gather_base", self, [whole], [out])
            self._gather(out, whole)
        return self._done(outs)

    def _scatter(self, out: Any, given: Any, options: Any) -> None:
        """Sum over all ranks, of which each rank keeps its part."""
        mean = options is not None and options.reduceOp == dist.ReduceOp.AVG
        whole = self._raw(given).clone()
        asked = bound.AllreduceOptions()
        asked.reduceOp = dist.ReduceOp.SUM if options is None or mean else options.reduceOp
        self._gloo.allreduce([whole], asked).wait()
        part = whole.flatten().chunk(self._size)[self.rank()]
        self._raw(out).copy_(part.view(out.shape))
        if mean:
            self._raw(out).div_(self._size)

    def _reduce_scatter_base(self, out: Any, given: Any, opts: Any = None) -> Any:
        _record("_reduce_scatter_base", self, [given], [out])
        self._scatter(out, given, opts)
        return self._done([out])

    def reduce_scatter_tensor_coalesced(self, outs: Any, given: Any, opts: Any = None) -> Any:
        for out, whole in zip(outs, given, strict=True):
            _record("_reduce_scatter_base", self, [whole], [out])
            self._scatter(out, whole, opts)
        return self._done(outs)

    def reduce_scatter(self, outs: Any, given: Any, opts: Any = None) -> Any:
        for out, parts in zip(outs, given, strict=True):
            _record("reduce_scatter", self, parts, [out])
            self._scatter(out, torch.cat([p.flatten() for p in parts]), opts)
        return self._done(outs)

    def alltoall_base(self, out: Any, given: Any, outs: Any, ins: Any, opts: Any = None) -> Any:
        _record("all_to_all", self, [given], [out])
        asked = opts or bound.AllToAllOptions()
        self._gloo.alltoall_base(self._raw(out), self._raw(given), outs, ins, asked).wait()
        return self._done([out])

    def scatter(self, outs: Any, given: Any, opts: Any = None) -> Any:
        _record("scatter", self, [x for part in given for x in part], outs)
        self._gloo.scatter(self._raw(outs), self._raw(given), opts or bound.ScatterOptions()).wait()
        return self._done(outs)

    def gather(self, outs: Any, given: Any, opts: Any = None) -> Any:
        _record("gather", self, given, [x for part in outs for x in part])
        self._gloo.gather(self._raw(outs), self._raw(given), opts or bound.GatherOptions()).wait()
        return self._done(outs)

    def alltoall(self, outs: Any, given: Any, opts: Any = None) -> Any:
        _record("all_to_all", self, given, outs)
        raw = self._raw(outs)
        for source in range(self._size):  # gloo has no list form
            parts = [self._raw(given)] if source == self.rank() else []
            asked = bound.ScatterOptions()
            asked.rootRank = source
            self._gloo.scatter([raw[source]], parts, asked).wait()
        return self._done(outs)

    # Names in newer versions of torch.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _start_coalescing(self, device: Any) -> None:
        return None

    def _end_coalescing(self, device: Any) -> Any:
        return self._done([])

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        _record(f"send {self.rank()}->{to}", self, tensors, tensors)
        return self._gloo.send(self._raw(tensors), to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        _record(f"recv {self.rank()}<-{source}", self, tensors, tensors)
        return self._gloo.recv(self._raw(tensors), source, tag)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        _record("reduce", self, tensors, tensors)
        self._gloo.reduce(self._raw(tensors), opts or bound.ReduceOptions()).wait()
        return self._done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        self._gloo.barrier(bound.BarrierOptions()).wait()
        return self._done([])


def _dump(*_: Any, **__: Any) -> str:
    return json.dumps({"version": "2.10", "entries": ENTRIES})


def bytes_of(entry: dict[str, Any]) -> int:
    """Return the number of elements of an entry's inputs."""
    return sum(math.prod(size) for size in entry["input_sizes"])


def install() -> None:
    """Replace torch's NCCL backend."""
    distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = Nccl  # type: ignore[attr-defined, misc]
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.default_pg_nccl_timeout = datetime.timedelta(minutes=10)
    dist.Backend.backend_capability["nccl"] = [NAME]
    dist.Backend.default_device_backend_map[NAME] = "nccl"
    torch._C._nccl_version = lambda: 2 << 32 | 29 << 16 | 7  # type: ignore[attr-defined]
    torch._C._nccl_version_suffix = lambda: b""  # type: ignore[attr-defined]
    bound._dump_nccl_trace_json = _dump  # type: ignore[attr-defined]
