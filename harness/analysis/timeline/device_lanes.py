"""Lanes of a rank that computes on a device."""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import marks
from harness.analysis.timeline.host_lanes import GLOO, host_ops
from harness.analysis.timeline.intervals import Intervals, subtract
from harness.analysis.timeline.lanes import ALONE, Lanes, Op
from harness.analysis.timeline.reader import Trace
from harness.record import Category

#: Names of communication kernels, in whatever namespaces.
_DEVICE_COMM = re.compile(
    r"(void )?((\w+|\(anonymous namespace\))::)*"
    r"(nccl|rccl|msccl|cross_device_reduce|one_?shot_|two_?shot_|multimem_|symm_mem"
    r"|\w*all_?reduce_fusion|nvshmem)"
    r"|(void )?deep_ep::.*(dispatch|combine)",
    re.I,
)
_ACROSS = re.compile(r"Memcpy (HtoD|DtoH|PtoP)")
#: After a call that launches has returned, its kernel may begin so much later at once, ns.
_BEGINS_NS = 10_000
#: For what no call launched. A trace's own times may be negative.
_NONE = np.iinfo(np.int64).min


def device_lanes(trace: Trace, rank: int, step_name: str | None = None) -> Lanes:
    """Kernels are compute or communication; gaps belong to whatever kept the next kernel away."""
    host_edges, _, unsure = marks.host_steps(trace, step_name)
    kernels = trace.of_cat("kernel")
    copies = trace.of_cat("gpu_memcpy")
    across = copies & trace.named(_ACROSS)
    device = kernels | copies | trace.of_cat("gpu_memset")
    named = {row for row, args in trace.extra.items() if args.collective}
    stated = np.zeros(len(trace.start), dtype=bool)
    stated[list(named)] = True
    talk = kernels & (stated | trace.named(_DEVICE_COMM))
    rows = np.flatnonzero(device)
    launched, returned = _launches(trace, rows)
    edges, more = _device_steps(trace, rows, launched, host_edges)
    busy = marks.rows_of(trace, device)
    queued, launch = _gaps(trace, rows, launched, returned, busy, edges)
    ops = list(_device_ops(trace, talk))
    if nameless := sum(op.group == ALONE for op in ops):
        more += (f"{nameless} kernels send or receive and name no peer: they are not divided",)
    host_talk = host_ops(trace, trace.named(GLOO), marks.marked(trace, Category.COMMUNICATION))
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="cuda",
        edges=edges,
        compute=marks.rows_of(trace, device & ~talk & ~across),
        move=marks.rows_of(trace, across),
        ops=tuple(
            sorted([*ops, *host_talk], key=lambda operation: (operation.start, operation.end))
        ),
        data=marks.rows_of(trace, marks.data(trace)),
        launch=launch,
        queued=queued,
        unsure=unsure + more,
    )


def _launches(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each of the device's rows when the host's call that launched it began and returned."""
    calls = trace.of_cat("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime")
    launching = np.flatnonzero(calls & (trace.correlation >= 0))
    launching = launching[np.argsort(trace.correlation[launching], kind="stable")]
    ids, wanted = trace.correlation[launching], trace.correlation[rows]
    began = np.full(len(rows), _NONE, dtype=np.int64)
    returned = began.copy()
    if len(ids):
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        hit = ids[at] == wanted
        began[hit] = trace.start[launching[at[hit]]]
        returned[hit] = trace.end[launching[at[hit]]]
    return began, returned


def _device_steps(
    trace: Trace,
    rows: NDArray[np.int64],
    launched: NDArray[np.int64],
    host_edges: NDArray[np.int64],
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Step k ends on the device with the last kernel that the host launched in it or before.

    The first step of a trace has no predecessor in it and is the anchor that the next starts from;
    one that is alone begins where the host's does. Steps that launch nothing are left out.
    """
    known = launched != _NONE
    if not known.any():
        return host_edges, ("its device steps cannot be located, so the host's windows are used",)
    step = np.searchsorted(host_edges, launched, side="right") - 1
    count = len(host_edges) - 1
    ends = np.full(count, _NONE, dtype=np.int64)
    inside = known & (step < count)
    np.maximum.at(ends, np.maximum(step[inside], 0), trace.end[rows[inside]])
    if count == 1:
        edges = np.array([host_edges[0], max(ends[0], host_edges[1])], dtype=np.int64)
        return edges, ("a single step, from where the host's begins to where its device work ends",)
    reached = np.maximum.accumulate(ends)
    edges = np.unique(reached[reached != _NONE])
    empty = count - len(edges)
    return edges, (f"{empty} steps launched nothing on the device: left out",) if empty else ()


def _gaps(
    trace: Trace,
    rows: NDArray[np.int64],
    launched: NDArray[np.int64],
    returned: NDArray[np.int64],
    busy: Intervals,
    edges: NDArray[np.int64],
) -> tuple[Intervals, Intervals]:
    """Idle instants of the device: those with the next kernel queued, those of its launch.

    A launch takes as long as its call, and the moment that a kernel needs to begin. A kernel that
    begins later waited in its queue for something else.
    """
    span = np.array([[edges[0], edges[-1]]], dtype=np.int64)
    idle = subtract(span, busy)
    following = np.searchsorted(trace.start[rows], idle[:, 1], side="left")
    has = following < len(rows)
    idle = idle[has]
    following = following[has]
    idle = idle[launched[following] != _NONE]
    following = following[launched[following] != _NONE]
    first, last = idle[:, 0], idle[:, 1]
    begins = np.clip(launched[following], first, last)
    over = np.clip(returned[following] + _BEGINS_NS, begins, last)
    launch = np.stack([begins, over], axis=1)
    queued = np.stack([over, last], axis=1)
    return queued[queued[:, 1] > queued[:, 0]], launch[launch[:, 1] > launch[:, 0]]


def _device_ops(trace: Trace, talk: NDArray[np.bool_]) -> Iterator[Op]:
    """Communication kernels with what they say of themselves."""
    for row in np.flatnonzero(talk).tolist():
        args = trace.extra.get(row)
        kind = (args.collective if args else "") or trace.names[trace.name[row]].split("(")[0]
        kind = kind.lower().removeprefix("_").removesuffix("_base")
        nameless = not (args and args.collective) and "sendrecv" in kind
        yield Op(
            start=int(trace.start[row]),
            end=int(trace.end[row]),
            kind=kind,
            group=ALONE if nameless else f"{args.group} {args.ranks}" if args else "",
            size=args.size if args else -1,
            seq=args.seq if args else -1,
            payload=args.nelems if args else -1,
            item_bytes=marks.item_bytes(args.dtype) if args else -1,
            peer=(args.target if kind == "send" else args.source) if args else -1,
        )
