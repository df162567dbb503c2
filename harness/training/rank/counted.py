"""Compares the bytes of the gate's steps with the strategy's closed form."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch.distributed as dist

from harness.cases import CaseSpec
from harness.record import Check, CollectiveCount, Expected, exchanges, headers
from harness.training.context import Loaded, RankContext
from harness.training.describe import expect, model_facts
from harness.training.observe import issued, sockets

#: The headers of what the flight recorder does not see (sends, barriers), for one step and other
#: rank.
WIRE_SLACK = 16_384
#: Steps of the gate.
STEPS = 4


class Seen(NamedTuple):
    """One step's collectives, and its bytes on this rank's sockets (None: not carried there)."""

    issued: Mapping[str, CollectiveCount]
    wire: sockets.Wire | None


class Counter:
    """Counts this rank's bytes in the steps of one whole period, as gate's steps are taken."""

    def __init__(self, ctx: RankContext, steps: range) -> None:
        self.ctx = ctx
        self.steps = steps
        self.seen = Seen({}, None)

    @contextlib.contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Counts what is sent inside, if the step is one of those. A collective of all ranks."""
        backend = self.ctx.case.backend
        meet(self.ctx)
        position = issued.mark(backend)
        before = sockets.read()
        yield
        passed = issued.since(position, backend)
        meet(self.ctx)  # everything sent is acknowledged
        after = sockets.read()
        over = after.since(before) if after and before else None
        if step not in self.steps:
            return
        if step > self.steps.start:
            passed = added(self.seen.issued, passed)
            over = None if over is None or self.seen.wire is None else self.seen.wire + over
        self.seen = Seen(passed, over)


def meet(ctx: RankContext) -> None:
    """A barrier, where there is more than one rank."""
    if ctx.world_size > 1:
        dist.barrier()


def period(loaded: Loaded, case: CaseSpec, ctx: RankContext) -> int:
    """Steps from one exchange to the next; the gate's steps are whole periods."""
    steps = 1
    if ctx.world_size > 1:
        facts, model = model_facts(loaded, case)
        steps = expect(loaded, case, model, facts).period
    if STEPS % steps:
        raise ValueError(f"a period of {steps} is not checked in {STEPS} steps: state TWIN")
    return steps


def added(
    calls: Mapping[str, CollectiveCount], other: Mapping[str, CollectiveCount]
) -> Mapping[str, CollectiveCount]:
    """Collectives of two steps together."""
    none = CollectiveCount(count=0, payload_bytes=0)
    pairs = {key: (calls.get(key, none), other.get(key, none)) for key in {*calls, *other}}
    return {
        name: CollectiveCount(
            count=a.count + b.count, payload_bytes=a.payload_bytes + b.payload_bytes
        )
        for name, (a, b) in pairs.items()
    }


def checks(loaded: Loaded, case: CaseSpec, ctx: RankContext, traffic: Seen) -> list[Check]:
    """One step's traffic against the strategy's closed form.

    Issued payloads, operation by operation, where the flight recorder sees them (gloo's send is
    not recorded); and bytes on the sockets, where those carry the traffic.
    """
    if ctx.world_size == 1:
        return []
    facts, model = model_facts(loaded, case)
    expected = expect(loaded, case, model, facts)
    steps = range(STEPS - expected.period, STEPS)
    talking = exchanges(steps, expected.period, expected.until, expected.growth)
    checked = []
    times = expected.period * talking
    promised = {key: value[ctx.rank] * times for key, value in expected.payload_bytes.items()}
    if case.backend == "gloo":
        promised.pop("send", None)
    for operation in sorted({*promised, *traffic.issued}):
        want = promised.get(operation, 0.0)
        payload_bytes = (
            traffic.issued[operation].payload_bytes if operation in traffic.issued else 0
        )
        ratio = (
            f"{payload_bytes / want:.3f}x of the closed form" if want else "not in the closed form"
        )
        checked.append(
            check(
                f"bytes.{operation}",
                abs(payload_bytes - want) <= 0.005 * want + 64,
                payload_bytes,
                want,
                ratio,
            )
        )
    if case.backend == "gloo" and traffic.wire is None:
        checked.append(Check(name="bytes.sent", ok=True, detail="not counted: no TCP_INFO here"))
    elif case.backend == "gloo" and traffic.wire is not None:
        want = expected.sent_bytes[ctx.rank] * times
        sent = traffic.wire.sent_bytes
        beside = WIRE_SLACK * (ctx.world_size - 1) + headers(traffic.issued, ctx.world_size)
        right = 0.995 * want <= sent <= 1.05 * want + beside
        difference = _against(float(sent), want, expected)
        checked.append(check("bytes.sent", right, sent, want, difference))
    return checked


def _against(sent: float, want: float, expected: Expected) -> str:
    """``50.3x of (N-1) 8 k, 1.00x of dense``"""
    if not want:
        return expected.formula
    dense = f", {sent / expected.dense_bytes:.2f}x of dense" if expected.dense_bytes else ""
    return f"{sent / want:.3f}x of {expected.formula}{dense}"


def check(name: str, ok: bool, value: float, limit: float, detail: str = "") -> Check:
    return Check(name=name, ok=ok, value=float(value), limit=float(limit), detail=detail)
