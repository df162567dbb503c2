"""The command ``run fit``: find the largest micro-batch that fits, each tried in a new launch."""

import argparse
import contextlib
import math
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.choices import batches
from harness.analysis.choices.batches import Attempt, Search
from harness.base.documents import to_doc
from harness.base.errors import Exit, LaunchError, SpecError
from harness.base.formatting import si
from harness.cases import Arm, CaseSpec, Catalogue, Device, Mode, Plan, Protocol, Role, Site
from harness.cases.targets import case_plan
from harness.host.machine import Machine
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.measure.order import Order
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose

HELP = {
    "run fit": "find the largest micro-batch of a case that fits in memory",
}
EXAMPLES = {
    "run fit": (
        "run fit ddp/decoder-tiny --cpus 2 --memory 1",
        "run fit fsdp/decoder-1b3 --gpus 8 --headroom 0.05",
    ),
}

#: Protocol of each trial: 5 steps, because memory has settled after the second.
PROTOCOL = Protocol(steps=5, cut=2)
#: A micro-batch is not launched if its predicted memory exceeds the allowed memory by this factor.
FORESEEN = 2.0


class Fitted(TypedDict):
    case: str
    limit_bytes: float
    headroom: float
    micro_batch: int | None
    tried: Sequence[Attempt]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run fit": (Fitted,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument("target", metavar="case", help="for example fsdp/decoder-1b3")
    measuring.add_measuring_options(sub, "records")
    sub.add_argument(
        "--headroom",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="share of memory that must stay free (default: 0.1)",
    )
    sub.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="memory of a rank (default: its GPU's memory, or its part of the host's memory)",
    )
    sub.add_argument("--most", type=measuring.positive, metavar="N", help="largest value to try")


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; expected 0 <= SHARE < 1")
    return value


def act(asked: Asked) -> Answer:
    """Return the trials and the command that uses the result; only the micro-batch is varied."""
    catalogue, site = measuring.site(asked)
    case = _case(asked, catalogue, site)
    with contextlib.closing(measuring.session(asked, catalogue, site)) as session:
        session.describe([case])
        limit = _limit(asked, case, session.run.machine)
        allowed = limit * (1 - asked.options.headroom)
        usual = int(catalogue.get("models", case.model).head["SIZES"][case.size]["batch"])
        search = Search(case.micro_batch or usual, _unit(catalogue, case), asked.options.most)
        tried: list[Attempt] = []
        with tempfile.TemporaryDirectory(prefix="scaleproof-fit-") as folder:
            while (micro := search.next(tried)) is not None:
                tried.append(_try(session, catalogue, case, micro, allowed, tried, Path(folder)))
        session.progress.clear()
    tried.sort(key=lambda attempt: attempt.micro)
    best = max(
        (attempt for attempt in tried if attempt.fits),
        key=lambda attempt: attempt.micro,
        default=None,
    )
    table = Table(columns=_columns(limit), rows=tried)
    lines = [*table.lines(text.columns()), "", *_told(asked, case, tried, best, limit, allowed)]
    document = {
        "case": case.id,
        "limit_bytes": limit,
        "headroom": asked.options.headroom,
        "micro_batch": best.micro if best else None,
        "tried": to_doc(tried),
    }
    return Answer(document=document, lines=lines, exit=Exit.PASSED if best else Exit.FAILED)


def _case(asked: Asked, catalogue: Catalogue, site: Site) -> CaseSpec:
    """Return the largest world of the case.

    Raise SpecError for strong scaling, in which the micro-batch is not free.
    """
    plan = case_plan(asked.options.target, site, catalogue, measuring.settings(asked))
    case = max((arm.case for arm in plan.arms if arm.role is not Role.ABLATION), key=_ranks)
    if case.mode is Mode.STRONG:
        raise SpecError(
            "strong scaling fixes the global batch, so the micro-batch cannot be chosen",
            where=case.id,
            expected="a case with weak scaling",
            fix=f"scaleproof run fit {case.family}",
        )
    return catalogue.normalise(case)


def _ranks(case: CaseSpec) -> int:
    return case.world_size


def _unit(catalogue: Catalogue, case: CaseSpec) -> int:
    """Return the number of which every valid micro-batch is a multiple.

    The strategy splits the samples of a shard into parts of equal size.
    """
    strategy = catalogue.get("strategies", case.strategy)
    supports = strategy.supports
    mesh = strategy.supports.mesh(case)
    parts = (
        int(case.knobs_of(case.strategy, strategy.knobs)[supports.parts]) if supports.parts else 1
    )
    return parts // math.gcd(parts, case.world_size // mesh.shards)


def _limit(asked: Asked, case: CaseSpec, machine: Machine) -> float:
    """Return the memory of a rank in bytes."""
    if asked.options.memory is not None:
        return float(asked.options.memory * 2**30)
    if case.device is Device.CUDA and machine.gpu_memory_gib is not None:
        return float(machine.gpu_memory_gib * 2**30 * case.devices_per_rank)
    return machine.memory_gib * 2**30 / max(case.nodes)


def _try(
    session: Session,
    catalogue: Catalogue,
    case: CaseSpec,
    micro: int,
    allowed: float,
    before: Sequence[Attempt],
    folder: Path,
) -> Attempt:
    """Try one micro-batch in a new launch, unless its predicted memory is far too large."""
    line = batches.grown(before)
    if line is not None and line.at(micro) > FORESEEN * allowed:
        reason = f"not launched: predicted to need {si(line.at(micro), 'B')}"
        return Attempt(micro=micro, peak_bytes=None, why=reason)
    sized = catalogue.normalise(replace(case, micro_batch=micro))
    (described,) = session.bench.describe([sized])
    if reason := described.refused:
        raise SpecError(
            reason, where=sized.id, expected="a case that can run", fix="scaleproof run list"
        )
    arm = Arm(name=f"micro_batch={micro}", case=sized, role=Role.SUBJECT)
    plan = Plan(name="fit", arms=(arm,), contrasts=(), protocol=PROTOCOL)
    order = Order(plan=plan, arm=arm, purpose=Purpose.TIMED, window=plan.window)
    launch = session.bench.launch(order, folder, described, lambda step: None)
    fitted = _found(launch, micro, allowed)
    speed = "" if fitted.throughput is None else f", {fitted.throughput:.3g} samples/s"
    session.progress.note(f"{arm.name}: {si(fitted.peak_bytes, 'B')}{speed}  {fitted.why}".rstrip())
    return fitted


def _found(launch: LaunchRecord, micro: int, allowed: float) -> Attempt:
    """Return whether a launch's micro-batch fits.

    Raise LaunchError if the launch failed for another reason.
    """
    if launch.cause is not None and launch.cause.kind != "memory":
        raise LaunchError(
            f"the launch with micro_batch={micro} failed: {launch.cause.message}",
            expected="training that succeeds or runs out of memory",
            fix="scaleproof check",
        )
    if launch.cause is not None:
        return Attempt(
            micro=micro, peak_bytes=None, why=f"rank {launch.cause.rank} ran out of memory"
        )
    peak = launch.peak_bytes
    if peak is None:
        raise LaunchError(
            "no rank reported its memory",
            expected="a device or a /proc that reports peak memory",
            fix="scaleproof check",
        )
    reason = "" if peak <= allowed else f"above {si(allowed, 'B')}"
    return Attempt(micro=micro, peak_bytes=peak, throughput=launch.throughput, why=reason)


def _columns(limit: float) -> list[Column[Attempt]]:
    def share(t: Attempt) -> str:
        return "" if t.peak_bytes is None else f"{t.peak_bytes / limit:.0%}"

    def speed(t: Attempt) -> str:
        return "" if t.throughput is None else f"{t.throughput:.3g}"

    return [
        Column("micro-batch", 9, lambda t: str(t.micro), raw=lambda t: t.micro),
        Column("peak", 8, lambda t: si(t.peak_bytes, "B"), raw=lambda t: t.peak_bytes),
        Column("of limit", 5, share),
        Column("samples/s", 6, speed, raw=lambda t: t.throughput),
        Column("", 7, lambda t: t.why or "fits", left=True, prose=True),
    ]


def _told(
    asked: Asked,
    case: CaseSpec,
    tried: Sequence[Attempt],
    best: Attempt | None,
    limit: float,
    allowed: float,
) -> Iterator[str]:
    """Yield the result, what limits it, and the command that uses it."""
    room = f"{si(allowed, 'B')}, {asked.options.headroom:.0%} below {si(limit, 'B')} a rank"
    line = batches.grown(tried)
    if best is None:
        yield f" NONE     {tried[0].micro} a rank does not fit: {tried[0].why} (allowed: {room})"
        yield " try      more ranks, a smaller size, or --set checkpoint=true"
        return
    yield f" largest  {best.micro} a rank: {si(best.peak_bytes, 'B')} of {room}"
    failed = [attempt for attempt in tried if not attempt.fits]
    if failed and line is not None:
        yield (
            f" limit    memory: {si(max(0.0, line.fixed), 'B')} for any batch, and"
            f" {si(line.per_sample, 'B')} a sample"
        )
    elif asked.options.most is not None:
        yield f" limit    --most {asked.options.most}, not memory"
    target, *more = _without(asked.words[len(asked.command.split()) :])
    use = ["scaleproof", "run", target, *more, "--set", f"micro_batch={best.micro}"]
    yield f" use it   {shlex.join(use)}"


def _without(words: Sequence[str]) -> list[str]:
    """Return the words of the command without the options that only ``run fit`` takes."""
    words_left = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if skip or name in ("--headroom", "--memory", "--most"):
            skip = not skip and "=" not in word
            continue
        words_left.append(word)
    return words_left
