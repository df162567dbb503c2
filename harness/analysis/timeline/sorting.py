"""Sort the trace of one rank into lanes, for ranks that compute on the host or on a device.

A lane is the set of times in which the rank did one kind of work, such as compute.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import lanes, lanes as marks
from harness.analysis.timeline.events import Args
from harness.analysis.timeline.intervals import EMPTY, Intervals, merge, subtract, union
from harness.analysis.timeline.lanes import ALONE, Lanes, Op, levels
from harness.analysis.timeline.reader import ASCEND, Trace
from harness.base.errors import ScaleproofError
from harness.record import Category
from harness.record.budget import OUTLINE
from harness.record.spans import GROUPS

_ISSUE = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
#: Ranges of the autograd engine around an operator and its hooks. A hook may wait within such a
#: range, so the range does not count as compute.
_AROUND = re.compile(r"autograd::engine::evaluate_function|RegisterPostBackwardFunction")
#: Operator names that identify a thread of the autograd engine. The work of these threads counts,
#: in addition to the work of the thread that runs the steps.
_ENGINE = re.compile(r"autograd::engine::evaluate_function")
GLOO = re.compile(r"gloo:")
#: Spans in which a trainer works. The span ``step`` is omitted because it encloses all of them.
_WORK = re.compile(r"scaleproof\.\w+\.(forward|backward|optimizer)$")
_PEER = re.compile(r"scaleproof\.peer\.(send|recv)\.(\d+)$")


def outlined(trace: Trace) -> bool:
    """Return whether a trace is an outline: it has the harness's spans, but no operators."""
    return bool(marks.marked(trace, Category.STEP).any() and not trace.of_cat("cpu_op").any())


def outline_lanes(trace: Trace, rank: int) -> Lanes:
    """Return the lanes of an outline, which records spans but no operators.

    Compute is the time inside the spans of the training, without waiting and loading of data. It
    includes the time of Python code. If a trace has no such spans, the whole steps are used.
    """
    edges, _, unsure = marks.host_steps(trace)
    work = trace.named(_WORK) & marks.marked(trace, Category.STEP, Category.OPTIMIZER)
    work |= marks.marked(trace, Category.COMPUTE)
    if not work.any():
        work = marks.marked(trace, Category.STEP)
    loading = marks.rows_of(trace, marks.data(trace))
    waits = marks.rows_of(trace, marks.marked(trace, Category.WAIT, Category.COMMUNICATION))
    busy = subtract(marks.rows_of(trace, work), merge(loading, waits))
    ops = host_ops(trace, trace.named(GLOO), marks.marked(trace, Category.COMMUNICATION))
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="cpu",
        edges=edges,
        compute=busy,
        move=EMPTY,
        ops=tuple(
            sorted(
                (
                    _from_its_wait(operation, busy) if operation.p2p else operation
                    for operation in ops
                ),
                key=_begins,
            )
        ),
        data=loading,
        launch=EMPTY,
        queued=EMPTY,
        unsure=unsure,
        capture=OUTLINE,
    )


def _begins(op: Op) -> tuple[int, int]:
    return op.start, op.end


def host_lanes(trace: Trace, rank: int, step_name: str | None = None) -> Lanes:
    """Return the lanes of a rank that computes on the host.

    Operators count as compute, gloo's ranges as communication, and gaps as idle time of the host.
    At any time, the innermost range of a thread determines what the thread does. Annotations do not
    count as compute, because a wait inside an annotation has no range.
    """
    edges, main, unsure = marks.host_steps(trace, step_name)
    gloo = trace.named(GLOO)
    issue = trace.named(_ISSUE) & trace.of_cat("cpu_op")
    ours = marks.marked(trace, *Category)
    spans = marks.marked(trace, Category.COMMUNICATION)
    data = marks.data(trace)
    operators = trace.of_cat("cpu_op") & ~issue & ~ours & ~trace.named(_AROUND)
    operators |= marks.marked(trace, Category.COMPUTE)
    loops = np.unique(trace.thread[gloo])
    compute, issued = EMPTY, EMPTY
    engines = np.unique(trace.thread[trace.named(_ENGINE) | ours])
    beside = 0
    for thread in np.unique(trace.thread[trace.of_cat("cpu_op")]):
        if thread != main and (thread in loops or thread not in engines):
            beside += thread not in loops  # threads of gloo are expected
            continue
        of_thread = (trace.thread == thread) & ~gloo & ~trace.named(marks.STEP)
        mine, calls = _innermost(trace, of_thread, operators, issue)
        compute = merge(compute, mine)
        issued = merge(issued, calls)
    loading = marks.rows_of(trace, data)
    ops = list(host_ops(trace, gloo, spans))
    busy = merge(compute, issued, loading)
    ops = [_from_its_wait(operation, busy) if operation.p2p else operation for operation in ops]
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="cpu",
        edges=edges,
        compute=subtract(compute, loading),
        move=EMPTY,
        ops=tuple(sorted(ops, key=_begins)),
        data=loading,
        launch=issued,
        queued=EMPTY,
        unsure=unsure
        + (
            (f"{beside} threads outside the step also run operators, which are ignored",)
            if beside
            else ()
        ),
    )


def _innermost(
    trace: Trace, here: NDArray[np.bool_], *wanted: NDArray[np.bool_]
) -> list[Intervals]:
    """Return, for each mask in ``wanted``, the times in which the innermost range is in the mask.

    ``here`` selects the rows of one thread. Ranges of a thread nest, so ranges of the same depth
    are disjoint. Deeper ranges take precedence over the ranges around them.
    """
    lanes = [EMPTY] * len(wanted)
    deeper = EMPTY
    for rows in reversed(list(levels(trace, np.flatnonzero(here)))):
        for i, kind in enumerate(wanted):
            keep = rows[kind[rows]]
            here_only = subtract(union(trace.start[keep], trace.end[keep]), deeper)
            lanes[i] = merge(lanes[i], here_only)
        deeper = merge(deeper, union(trace.start[rows], trace.end[rows]))
    return lanes


def host_ops(trace: Trace, gloo: NDArray[np.bool_], spans: NDArray[np.bool_]) -> Iterator[Op]:
    """Yield the communications of the host.

    They are gloo's ranges, and the harness's spans around backends that record no ranges. A gloo
    range names neither its group nor its peer. The group follows from the thread. The k-th
    ``gloo:send`` belongs to the k-th ``c10d::send``, or to the k-th peer that an outline records.
    """
    peers: dict[str, list[int]] = {}
    for kind, operator in (("send", "c10d::send"), ("recv", "c10d::recv_")):
        rows = np.flatnonzero(trace.named(re.compile(re.escape(operator) + "$")))
        peers[kind] = [_peer(trace.extra.get(int(r))) for r in rows]
    for row in np.flatnonzero(trace.named(_PEER)).tolist():
        _, _, kind, peer = trace.names[trace.name[row]].split(".")
        peers[kind].append(int(peer))
    groups = _groups(trace)
    for row in np.flatnonzero(gloo).tolist():
        kind = trace.names[trace.name[row]].removeprefix("gloo:")
        args = trace.extra.get(row)
        yield Op(
            start=int(trace.start[row]),
            end=int(trace.end[row]),
            kind=kind,
            group=groups.get(int(trace.thread[row]), ""),
            payload=_elements(args),
            item_bytes=_item_bytes(args),
            peer=peers[kind].pop(0) if peers.get(kind) else -1,
        )
    for row in np.flatnonzero(spans).tolist():
        name = trace.names[trace.name[row]]
        yield Op(start=int(trace.start[row]), end=int(trace.end[row]), kind=name, group=ALONE)


def _groups(trace: Trace) -> dict[int, str]:
    """Return the process group of each thread that communicates within a subgroup of the world."""
    named = trace.meta.get(GROUPS)
    known = named if isinstance(named, dict) else {}
    of = {i: str(known.get(t.rpartition("/")[2], "")) for i, t in enumerate(trace.threads)}
    return {thread: group for thread, group in of.items() if group}


def _from_its_wait(op: Op, busy: Intervals) -> Op:
    """Return a send or recv of gloo with the time at which the rank began to wait for it.

    A range of gloo lasts from the call to the end of the transfer, but the rank may do other work
    (``busy``) in between. The wait begins at the end of the last work that starts before the
    transfer ends.
    """
    before = int(np.searchsorted(busy[:, 0], op.end, side="left"))
    return replace(op, waited=int(busy[before - 1, 1]) if before else op.start)


def _peer(args: Args | None) -> int:
    """Return the destination or source rank from the inputs of a send or recv; -1 if unknown."""
    if args is None or not args.inputs:
        return -1
    numbers = [v for v in args.inputs if re.fullmatch(r"-?\d+", v)]
    return int(numbers[0]) if numbers else -1


def _item_bytes(args: Args | None) -> int:
    """Return the bytes of an element of the first input, or -1 if unknown.

    All inputs of one communication have the same type.
    """
    types = args.types if args and args.types else []
    return marks.item_bytes(types[0]) if types and isinstance(types[0], str) else -1


def _elements(args: Args | None) -> int:
    """Return the number of elements of all inputs, from their shapes, or -1 if unknown."""
    if args is None or not args.dims:
        return -1

    def count(shape: object) -> int:
        if not isinstance(shape, list):
            return 0
        if all(isinstance(n, int) for n in shape):
            return math.prod(shape) if shape else 0
        return sum(count(inner) for inner in shape)

    return count(args.dims)


#: Names of communication kernels, in any C++ namespace.
_DEVICE_COMM = re.compile(
    r"(void )?((\w+|\(anonymous namespace\))::)*"
    r"(nccl|rccl|msccl|cross_device_reduce|one_?shot_|two_?shot_|multimem_|symm_mem"
    r"|\w*all_?reduce_fusion|nvshmem)"
    r"|(void )?deep_ep::.*(dispatch|combine)",
    re.I,
)
_ACROSS = re.compile(r"Memcpy (HtoD|DtoH|PtoP)")
#: Longest time in ns between the return of a kernel-launch call and the begin of its kernel on an
#: idle device. A kernel that begins later waited for something else.
_BEGINS_NS = 10_000
#: Value for a row that no call launched. It cannot be -1 because times in a trace may be negative.
_NONE = np.iinfo(np.int64).min


def device_lanes(trace: Trace, rank: int, step_name: str | None = None) -> Lanes:
    """Return the lanes of a rank that computes on a device.

    Kernels are compute or communication. A gap between kernels is attributed to the cause of the
    next kernel's delay.
    """
    host_edges, _, unsure = lanes.host_steps(trace, step_name)
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
    busy = lanes.rows_of(trace, device)
    queued, launch = _gaps(trace, rows, launched, returned, busy, edges)
    ops = list(_device_ops(trace, talk))
    if nameless := sum(op.group == ALONE for op in ops):
        more += (
            f"{nameless} kernels send or receive, but name no peer, so their time is not divided",
        )
    host_talk = host_ops(trace, trace.named(GLOO), lanes.marked(trace, Category.COMMUNICATION))
    return Lanes(
        rank=rank,
        world_size=trace.world_size,
        device="npu" if ASCEND in trace.notes else "cuda",
        edges=edges,
        compute=lanes.rows_of(trace, device & ~talk & ~across),
        move=lanes.rows_of(trace, across),
        ops=tuple(
            sorted([*ops, *host_talk], key=lambda operation: (operation.start, operation.end))
        ),
        data=lanes.rows_of(trace, lanes.data(trace)),
        launch=launch,
        queued=queued,
        unsure=unsure + more,
    )


def _launches(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the host calls that launched device rows began and returned, as two arrays in ns.

    ``rows`` are the device rows. Rows without such a call get ``_NONE``.
    """
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
    """Return the edges of the steps on the device, and notes about them.

    Step k ends with the last kernel that the host launched during step k or earlier. A step begins
    at the end of the step before it. The first step of a trace therefore has no known begin, and
    only its end is used. If the trace has a single step, that step begins when the host's step
    begins. Steps that launch no kernels are omitted.
    """
    known = launched != _NONE
    if not known.any():
        return host_edges, (
            "the steps cannot be located on the device, so the steps of the host are used",
        )
    step = np.searchsorted(host_edges, launched, side="right") - 1
    count = len(host_edges) - 1
    ends = np.full(count, _NONE, dtype=np.int64)
    inside = known & (step < count)
    np.maximum.at(ends, np.maximum(step[inside], 0), trace.end[rows[inside]])
    if count == 1:
        edges = np.array([host_edges[0], max(ends[0], host_edges[1])], dtype=np.int64)
        return edges, (
            "the trace has a single step; it is measured from its begin on the host to the end of"
            " its work on the device",
        )
    reached = np.maximum.accumulate(ends)
    edges = np.unique(reached[reached != _NONE])
    empty = count - len(edges)
    return edges, (
        f"{empty} steps launched nothing on the device and are ignored",
    ) if empty else ()


def _gaps(
    trace: Trace,
    rows: NDArray[np.int64],
    launched: NDArray[np.int64],
    returned: NDArray[np.int64],
    busy: Intervals,
    edges: NDArray[np.int64],
) -> tuple[Intervals, Intervals]:
    """Return the idle times of the device, as two sets.

    In the first set, the next kernel is already queued and waits for something else. In the second
    set, the host is launching the next kernel. The launch of a kernel lasts for the launching call
    plus ``_BEGINS_NS``.
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
    """Yield the communication kernels with the arguments that the trace records for them."""
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
            item_bytes=lanes.item_bytes(args.dtype) if args else -1,
            peer=(args.target if kind == "send" else args.source) if args else -1,
        )


#: Trace categories of calls to a device's runtime. ``_LAUNCH`` matches the calls that launch a
#: kernel.
_RUNTIME = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver",
    "privateuse1_runtime", "privateuse1_driver",
)  # fmt: skip
_LAUNCH = re.compile(r"\w*launch", re.IGNORECASE)
#: Largest number of runtime calls that the profiler makes if nothing runs on the device.
_OF_PROFILER = 2
#: Categories of device rows other than kernels.
_ON_DEVICE = ("gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
#: Operators that run on a device only. ``cudnn_is_acceptable`` is excluded because it also runs on
#: hosts.
_DEVICE_OPERATOR = re.compile(r".*(cudnn_(?!is_acceptable)|cublas|miopen|nccl:)")
#: A damaged trace is usable if at least this share of its kernel-launch calls have their kernel in
#: the trace. It is below 1 because the profiler may stop before the last kernels run.
_WHOLE = 0.9


def sorted_lanes(trace: Trace, rank: int | None = None, step_name: str | None = None) -> Lanes:
    """Sort a trace into lanes.

    ``rank`` is used if the file does not state its rank. ``step_name`` is the name (or glob) of the
    annotation that counts as a step; the default is the profiler's ``ProfilerStep``. Raise
    ScaleproofError if the trace contains no training, or no activity of the device that was used.
    """
    known = trace.rank if trace.rank >= 0 else (rank or 0)
    on_device = bool(trace.of_cat("kernel").any())
    if missing := _missing(trace, on_device=on_device):
        raise ScaleproofError(
            f"device activity is missing: {missing}",
            where=trace.path,
            expected="a complete trace that includes the kernels of the device",
            fix="profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), with no other"
            " tool on the device, then export the trace again",
        )
    notes = trace.notes
    if on_device:
        lane = device_lanes(trace, known, step_name)
    elif outlined(trace):
        lane = outline_lanes(trace, known)
    elif trace.of_cat("cpu_op").any():
        lane = host_lanes(trace, known, step_name)
        if device := _named_device(trace):
            notes += (
                f"the header names {device}, but no event ran on it: the trace may be incomplete",
            )
    else:
        raise ScaleproofError(
            "no operator and no kernel in this trace, so it shows no training",
            where=trace.path,
            expected="a Chrome trace of torch.profiler",
            fix="export_chrome_trace('t.json.gz'), then scaleproof report timeline t.json.gz",
        )
    if (lane.edges[1:] <= lane.edges[:-1]).any() or len(lane.edges) < 2:
        raise ScaleproofError(
            "no step in this trace has a length",
            where=trace.path,
            expected="steps that run something",
            fix="profile at least 3 steps, then try again",
        )
    unsure = lane.unsure + ((trace.partial,) if trace.partial else ()) + notes
    return replace(lane, unsure=unsure)


def _missing(trace: Trace, *, on_device: bool) -> str:
    """Describe the device rows that are missing in a trace.

    Return an empty string if none are missing, or if the training ran on the host only.
    """
    launches = trace.of_cat(*_RUNTIME) & trace.named(_LAUNCH)
    count = int(launches.sum())
    cut = f"{trace.partial}, and " if trace.partial else ""
    if on_device:
        ran = int(np.isin(trace.correlation[launches], _correlated(trace)).sum())
        lost = f"{cut}{count - ran:,} of {count:,} kernel launches have no kernel"
        return lost if cut and ran < _WHOLE * count else ""
    if count:
        return f"{cut}{count:,} kernel launch{'es have' if count > 1 else ' has'} no kernel"
    if trace.of_cat(*_ON_DEVICE).any() or trace.device_memory:
        return f"{cut}the trace has rows of a device, but no kernel"
    if (calls := int(trace.of_cat(*_RUNTIME).sum())) > _OF_PROFILER:
        return f"{cut}{calls:,} calls to the runtime of a device have no kernel"
    if trace.named(_DEVICE_OPERATOR).any():
        names = [name for name in trace.names if _DEVICE_OPERATOR.match(name)]
        return f"{cut}{names[0]} ran on a device, but has no kernel"
    if cut and (device := _named_device(trace)):
        return f"{cut}no row is of {device}, which the header names"
    return ""


def _correlated(trace: Trace) -> NDArray[np.integer]:
    """Return the correlation ids of the events that ran on the device."""
    return trace.correlation[trace.of_cat("kernel", "gpu_memcpy", "gpu_memset")]


def _named_device(trace: Trace) -> str:
    """Return the name of the first device that the header lists, or an empty string."""
    listed = trace.meta.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else {}
    return str(first.get("name") or "a device") if isinstance(first, dict) and first else ""
