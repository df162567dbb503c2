"""Lanes of a rank that computes on the host."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import marks
from harness.analysis.timeline.events import Args
from harness.analysis.timeline.intervals import EMPTY, Intervals, merge, subtract, union
from harness.analysis.timeline.lanes import ALONE, Lanes, Op
from harness.analysis.timeline.nesting import levels
from harness.analysis.timeline.reader import Trace
from harness.record import Category
from harness.record.budget import OUTLINE
from harness.record.spans import GROUPS

_ISSUE = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
#: The engine's bookkeeping around an operator and its hooks, where a hook may wait: never compute.
_AROUND = re.compile(r"autograd::engine::evaluate_function|RegisterPostBackwardFunction")
#: Threads that train: the one of the steps, and the engine's.
_ENGINE = re.compile(r"autograd::engine::evaluate_function")
GLOO = re.compile(r"gloo:")
#: Spans in which a trainer works; ``step`` is around all of them.
_WORK = re.compile(r"scaleproof\.\w+\.(forward|backward|optimizer)$")
_PEER = re.compile(r"scaleproof\.peer\.(send|recv)\.(\d+)$")


def outlined(trace: Trace) -> bool:
    """Whether a trace has our own spans and no operators: a profile that is an outline."""
    return bool(marks.marked(trace, Category.STEP).any() and not trace.of_cat("cpu_op").any())


def outline_lanes(trace: Trace, rank: int) -> Lanes:
    """Lanes of an outline: what a rank neither waits for nor loads is its own work, Python's too.

    Work is what the spans of a training cover, or the whole of a step that has none.
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
    """Operators are compute, gloo's ranges are communication, holes are the host's.

    What a thread does at an instant is what the innermost range there says: an operator computes,
    an annotation does not (a wait leaves no range of its own, only a hole in one of those).
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
            beside += thread not in loops  # gloo's own threads are known
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
        unsure=unsure + ((f"{beside} threads work beside the step: left out",) if beside else ()),
    )


def _innermost(
    trace: Trace, here: NDArray[np.bool_], *wanted: NDArray[np.bool_]
) -> list[Intervals]:
    """When the innermost range of one thread (rows ``here``) is a wanted one, for each of these.

    Ranges of a thread nest, so those of one depth are disjoint, and deeper ones paint over them.
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
    """The ranges of gloo, and our own spans around what no backend records.

    A gloo range has no group, but its thread has. It has no peer: the k-th ``c10d::send`` is the
    k-th ``gloo:send``, and so is the k-th peer that an outline notes.
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
    """Thread -> the ranks that it communicates between, where these are not all."""
    named = trace.meta.get(GROUPS)
    known = named if isinstance(named, dict) else {}
    of = {i: str(known.get(t.rpartition("/")[2], "")) for i, t in enumerate(trace.threads)}
    return {thread: group for thread, group in of.items() if group}


def _from_its_wait(op: Op, busy: Intervals) -> Op:
    """A send or recv of gloo's is under way until it is waited for: only the wait ends with it."""
    before = int(np.searchsorted(busy[:, 0], op.end, side="left"))
    return replace(op, waited=int(busy[before - 1, 1]) if before else op.start)


def _peer(args: Args | None) -> int:
    """The destination or source in the operands of a send or recv."""
    if args is None or not args.inputs:
        return -1
    numbers = [v for v in args.inputs if re.fullmatch(r"-?\d+", v)]
    return int(numbers[0]) if numbers else -1


def _item_bytes(args: Args | None) -> int:
    """Bytes of an element of the first input; all inputs of a communication are alike."""
    types = args.types if args and args.types else []
    return marks.item_bytes(types[0]) if types and isinstance(types[0], str) else -1


def _elements(args: Args | None) -> int:
    """Elements of all inputs, from their shapes."""
    if args is None or not args.dims:
        return -1

    def count(shape: object) -> int:
        if not isinstance(shape, list):
            return 0
        if all(isinstance(n, int) for n in shape):
            return math.prod(shape) if shape else 0
        return sum(count(inner) for inner in shape)

    return count(args.dims)
