"""One rank's trace sorted into lanes: what ran, what was communicated, what the host was doing.

A lane is a set of instants; lanes may overlap, the budget decides who takes what. Two kinds of
trace are told apart by whether any kernel ran on a device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import intervals
from harness.analysis.timeline.events import Args
from harness.analysis.timeline.intervals import EMPTY, Intervals, merge, subtract, union
from harness.analysis.timeline.reader import Trace
from harness.record import Category
from harness.record.spans import category_of

_STEP = re.compile(r"ProfilerStep#\d+$")
_DATA = re.compile(r"enumerate\(DataLoader\)#.*__next__")
_ISSUE = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
#: The engine's bookkeeping around an operator and its hooks, where a hook may wait: never compute.
_AROUND = re.compile(r"autograd::engine::evaluate_function|RegisterPostBackwardFunction")
_GLOO = re.compile(r"gloo:")
_DEVICE_COMM = re.compile(
    r"(void )?(nccl|rccl|mscclpp|cross_device_reduce|one_shot_|two_shot_|multimem_|symm_mem)", re.I
)
_ACROSS = re.compile(r"Memcpy (HtoD|DtoH|PtoP)")
_P2P = ("send", "recv")
#: The group of a communication that says nothing of other ranks: our own spans.
ALONE = "alone"
_SETS = ("compute", "move", "data", "launch", "queued")


@dataclass(frozen=True, kw_only=True)
class Op:
    """One communication of one rank; ns on its own clock, ``payload`` its input in elements.

    ``size`` is the group's number of ranks, ``seq`` its number within the group, ``peer`` the other
    end of a send or recv. -1 where the trace does not say. ``waited`` is when the rank had nothing
    left to do but to wait for it; before that it cannot have been in anyone's way.
    """

    start: int
    end: int
    kind: str
    group: str
    waited: int = 0
    size: int = -1
    seq: int = -1
    payload: int = -1
    peer: int = -1

    @property
    def p2p(self) -> bool:
        """Whether it has one other end, not a group."""
        return self.kind in _P2P


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """One rank. ``edges`` bound its steps: step k is [edges[k], edges[k + 1]).

    ``queued`` are instants at which the device idles although its next kernel is already queued.
    ``unsure`` says what this trace does not tell.
    """

    rank: int
    world_size: int
    device: str
    edges: NDArray[np.int64]
    compute: Intervals
    move: Intervals
    ops: tuple[Op, ...]
    data: Intervals
    launch: Intervals
    queued: Intervals
    unsure: tuple[str, ...] = ()

    @property
    def communication(self) -> Intervals:
        """When any communication was under way."""
        return intervals.of((o.start, o.end) for o in self.ops)

    @property
    def awaited(self) -> Intervals:
        """When any communication could keep the rank from going on."""
        return intervals.of((max(o.start, o.waited), o.end) for o in self.ops)

    def shifted(self, offset_ns: int) -> Lanes:
        if not offset_ns:
            return self
        moved = {n: getattr(self, n) + offset_ns for n in ("edges", *_SETS)}
        ops = (
            replace(
                o, start=o.start + offset_ns, end=o.end + offset_ns, waited=o.waited + offset_ns
            )
            for o in self.ops
        )
        return replace(self, ops=tuple(ops), **moved)


def lanes(trace: Trace, rank: int | None = None) -> Lanes:
    """Sort a trace. ``rank`` where the file does not say it itself."""
    known = trace.rank if trace.rank >= 0 else (rank or 0)
    if trace.of_cat("kernel").any():
        lane = _device_lanes(trace, known)
    else:
        lane = _host_lanes(trace, known)
    unsure = lane.unsure + ((trace.partial,) if trace.partial else ())
    return replace(lane, unsure=unsure)


def _rows(trace: Trace, mask: NDArray[np.bool_]) -> Intervals:
    return union(trace.start[mask], trace.end[mask])


def _host_steps(trace: Trace) -> tuple[NDArray[np.int64], int, tuple[str, ...]]:
    """Edges of the steps on the host, the thread that makes them, and what had to be assumed."""
    mask = trace.of_cat("user_annotation", "cpu_op") & trace.named(_STEP)
    rows = np.flatnonzero(mask)
    if len(rows):
        edges = np.append(trace.start[rows], trace.end[rows[-1]])
        return edges, int(trace.thread[rows[0]]), ()
    busiest = int(np.bincount(trace.thread).argmax())
    edges = np.array([trace.start.min(), trace.end.max()], dtype=np.int64)
    return edges, busiest, ("no ProfilerStep in the trace: the whole trace counts as one step",)


def _own(trace: Trace, *categories: Category) -> NDArray[np.bool_]:
    """Rows that are our own spans of these categories."""
    wanted = [i for i, n in enumerate(trace.names) if category_of(n) in categories]
    return np.isin(trace.name, wanted)


def _data(trace: Trace) -> NDArray[np.bool_]:
    return trace.named(_DATA) | _own(trace, Category.DATA)


# --- ranks that compute on the host ------------------------------------------------------------


def _host_lanes(trace: Trace, rank: int) -> Lanes:
    """Operators are compute, gloo's ranges are communication, holes are the host's.

    What a thread does at an instant is what the innermost range there says: an operator computes,
    an annotation does not (a wait leaves no range of its own, only a hole in one of those).
    """
    edges, main, unsure = _host_steps(trace)
    gloo = trace.named(_GLOO)
    issue = trace.named(_ISSUE) & trace.of_cat("cpu_op")
    ours = _own(trace, *Category)
    spans = _own(trace, Category.COMMUNICATION)
    data = _data(trace)
    operators = trace.of_cat("cpu_op") & ~issue & ~ours & ~trace.named(_AROUND)
    operators |= _own(trace, Category.COMPUTE)
    loops = np.unique(trace.thread[gloo])
    compute, issued = EMPTY, EMPTY
    for thread in np.unique(trace.thread[trace.of_cat("cpu_op")]):
        if thread != main and thread in loops:
            continue  # gloo's own threads
        here = (trace.thread == thread) & ~gloo & ~trace.named(_STEP)
        compute = merge(compute, _innermost(trace, here, operators))
        issued = merge(issued, _innermost(trace, here, issue))
    loading = _rows(trace, data)
    ops = list(_host_ops(trace, gloo, spans))
    busy = merge(compute, issued, loading)
    ops = [_from_its_wait(o, busy) if o.p2p else o for o in ops]
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="cpu",
        edges=edges,
        compute=subtract(compute, loading),
        move=EMPTY,
        ops=tuple(sorted(ops, key=lambda o: (o.start, o.end))),
        data=loading,
        launch=issued,
        queued=EMPTY,
        unsure=unsure,
    )


def _innermost(trace: Trace, here: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> Intervals:
    """When the innermost range of one thread (rows ``here``) is a wanted one.

    Ranges of a thread nest, so those of one depth are disjoint, and each deeper level paints over.
    """
    rows = np.flatnonzero(here)
    start, end = trace.start[rows], trace.end[rows]
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, side="right")
    innermost = EMPTY
    for level in range(int(depth.max(initial=-1)) + 1):
        at = depth == level
        keep = at & wanted[rows]
        innermost = merge(
            subtract(innermost, union(start[at], end[at])), union(start[keep], end[keep])
        )  # fmt: skip
    return innermost


def _host_ops(trace: Trace, gloo: NDArray[np.bool_], spans: NDArray[np.bool_]) -> Iterator[Op]:
    """The ranges of gloo, and our own spans around what no backend records.

    A gloo range has no peer; the k-th ``c10d::send`` is the k-th ``gloo:send``.
    """
    peers: dict[str, list[int]] = {}
    for kind, operator in (("send", "c10d::send"), ("recv", "c10d::recv_")):
        rows = np.flatnonzero(trace.named(re.compile(re.escape(operator) + "$")))
        peers[kind] = [_peer(trace.extra.get(int(r))) for r in rows]
    for row in np.flatnonzero(gloo).tolist():
        kind = trace.names[trace.name[row]].removeprefix("gloo:")
        yield Op(
            start=int(trace.start[row]),
            end=int(trace.end[row]),
            kind=kind,
            group="",
            payload=_elements(trace.extra.get(row)),
            peer=peers[kind].pop(0) if peers.get(kind) else -1,
        )
    for row in np.flatnonzero(spans).tolist():
        name = trace.names[trace.name[row]]
        yield Op(start=int(trace.start[row]), end=int(trace.end[row]), kind=name, group=ALONE)


def _from_its_wait(op: Op, busy: Intervals) -> Op:
    """A send or recv of gloo's is under way until it is waited for: only the wait ends with it."""
    before = int(np.searchsorted(busy[:, 0], op.end, side="left"))
    return replace(op, waited=int(busy[before - 1, 1]) if before else op.start)


def _peer(args: Args | None) -> int:
    """The destination or source in the operands of a send or recv."""
    if args is None or not args.inputs:
        return -1
    numbers = [v for v in json.loads(bytes(args.inputs)) if re.fullmatch(r"-?\d+", v)]
    return int(numbers[0]) if numbers else -1


def _elements(args: Args | None) -> int:
    """Elements of all inputs, from their shapes."""
    if args is None or not args.dims:
        return -1

    def count(shape: object) -> int:
        if not isinstance(shape, list):
            return 0
        if all(isinstance(n, int) for n in shape):
            return int(np.prod(shape)) if shape else 0
        return sum(count(inner) for inner in shape)

    return count(json.loads(bytes(args.dims)))


# --- ranks that compute on a device ------------------------------------------------------------


def _device_lanes(trace: Trace, rank: int) -> Lanes:
    """Kernels are compute or communication; gaps belong to whatever kept the next kernel away."""
    host_edges, _, unsure = _host_steps(trace)
    kernels = trace.of_cat("kernel")
    copies = trace.of_cat("gpu_memcpy")
    across = copies & trace.named(_ACROSS)
    device = kernels | copies | trace.of_cat("gpu_memset")
    named = {row for row, args in trace.extra.items() if args.collective}
    stated = np.zeros(len(trace.start), dtype=bool)
    stated[list(named)] = True
    talk = kernels & (stated | trace.named(_DEVICE_COMM))
    launched = _launches(trace, device)
    edges, more = _device_steps(trace, device, launched, host_edges)
    busy = _rows(trace, device)
    queued, launch = _gaps(trace, device, launched, busy, edges)
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="cuda",
        edges=edges,
        compute=_rows(trace, device & ~talk & ~across),
        move=_rows(trace, across),
        ops=tuple(_device_ops(trace, talk)),
        data=_rows(trace, _data(trace)),
        launch=launch,
        queued=queued,
        unsure=unsure + more,
    )


def _launches(trace: Trace, device: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For every row the start of the host's call that launched it; -1 for what none did."""
    calls = trace.of_cat("cuda_runtime", "cuda_driver", "hip_runtime") & (trace.correlation >= 0)
    rows = np.flatnonzero(calls)
    rows = rows[np.argsort(trace.correlation[rows], kind="stable")]
    ids = trace.correlation[rows]
    out = np.full(len(trace.start), -1, dtype=np.int64)
    wanted = np.flatnonzero(device & (trace.correlation >= 0))
    if len(rows) and len(wanted):
        at = np.minimum(np.searchsorted(ids, trace.correlation[wanted]), len(ids) - 1)
        hit = ids[at] == trace.correlation[wanted]
        out[wanted[hit]] = trace.start[rows[at[hit]]]
    return out


def _device_steps(
    trace: Trace,
    device: NDArray[np.bool_],
    launched: NDArray[np.int64],
    host_edges: NDArray[np.int64],
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Step k ends on the device with the last kernel that the host launched in it or before.

    The first step of a trace has no predecessor in it and is the anchor that the next starts from.
    """
    rows = np.flatnonzero(device)
    known = launched[rows] >= 0
    if not known.any() or len(host_edges) < 3:
        why = ("its device steps cannot be located, so the host's step windows are used",)
        return host_edges, () if len(host_edges) < 3 and known.any() else why
    step = np.searchsorted(host_edges, launched[rows], side="right") - 1
    ends = [trace.end[rows[known & (step <= k)]].max(initial=0) for k in range(len(host_edges) - 1)]
    edges = np.maximum.accumulate(np.array(ends, dtype=np.int64))
    return edges[edges > 0], ()


def _gaps(
    trace: Trace,
    device: NDArray[np.bool_],
    launched: NDArray[np.int64],
    busy: Intervals,
    edges: NDArray[np.int64],
) -> tuple[Intervals, Intervals]:
    """Idle instants of the device: those with the next kernel queued, those of its launch."""
    span = np.array([[edges[0], edges[-1]]], dtype=np.int64)
    idle = subtract(span, busy)
    rows = np.flatnonzero(device)
    order = rows[np.argsort(trace.start[rows], kind="stable")]
    following = np.searchsorted(trace.start[order], idle[:, 1], side="left")
    has = following < len(order)
    call = np.full(len(idle), -1, dtype=np.int64)
    call[has] = launched[order[following[has]]]
    was_queued = (call >= 0) & (call <= idle[:, 0])
    late = (call > idle[:, 0]) & (call < idle[:, 1])
    launch = np.stack([call[late], idle[late, 1]], axis=1) if late.any() else EMPTY
    return idle[was_queued], launch


def _device_ops(trace: Trace, talk: NDArray[np.bool_]) -> Iterator[Op]:
    """Communication kernels with what they say of themselves."""
    for row in np.flatnonzero(talk).tolist():
        args = trace.extra.get(row)
        kind = (args.collective if args else "") or trace.names[trace.name[row]].split("(")[0]
        kind = kind.lower().removeprefix("_").removesuffix("_base")
        yield Op(
            start=int(trace.start[row]),
            end=int(trace.end[row]),
            kind=kind,
            group=f"{args.group} {args.ranks}" if args else "",
            size=args.size if args else -1,
            seq=args.seq if args else -1,
            payload=args.nelems if args else -1,
            peer=(args.target if kind == "send" else args.source) if args else -1,
        )
