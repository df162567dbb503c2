"""The verbs beside ladders: ``fabric`` and ``pairs`` for the network, ``recover`` for restarts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.analysis.judging.series import FIRST
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, LaunchError, SpecError
from harness.base.numbers import si
from harness.interface import options
from harness.interface.report import tables, text
from harness.measure import slow_nodes
from harness.measure.measurer import Measurer
from harness.record.outcome import Reason, exit_status
from harness.spec import CaseSpec
from harness.spec.courses import Course, Fault, resharded
from harness.spec.site import Site


def add_to(
    fabric: argparse.ArgumentParser,
    pairs: argparse.ArgumentParser,
    recover: argparse.ArgumentParser,
) -> None:
    """The options of these verbs."""
    recover.add_argument("cases", nargs="+", metavar="CASE", help="as ddp/decoder-nano")
    recover.add_argument(
        "--trials", type=int, default=FIRST, metavar="N", help=f"of each kind (default: {FIRST})"
    )
    for sub in (fabric, pairs, recover):
        options.add_to(sub)
        sub.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a knob of the engine"
        )
    fabric.add_argument(
        "--sweeps", type=int, default=FIRST, metavar="N", help=f"launches (default: {FIRST})"
    )
    pairs.add_argument(
        "--exclude", type=Path, metavar="FILE", help="write the nodes to leave out here"
    )


def fabric(
    measurer: Measurer, site: Site, knobs: Mapping[str, Json], num_sweeps: int, rerun: str
) -> tuple[Exit, Json, list[str]]:
    """Sweep every world of the site, judge it, and once more where a FAIL has to be confirmed."""
    _needs_two(site)
    with _measuring(measurer):
        measurer.sweeper.sweep(site, knobs, num_sweeps)
        if any(v.reason is Reason.UNCONFIRMED for v in measurer.run.record(complete=True).verdicts):
            measurer.sweeper.sweep(site, knobs, num_sweeps)
    return _judged(measurer, rerun)


def pairs(
    measurer: Measurer, site: Site, knobs: Mapping[str, Json], exclude: Path | None
) -> tuple[Exit, Json, list[str]]:
    """Find nodes and links that are slower than the others."""
    if len(site.nodes) < 3:
        raise SpecError(
            f"{len(site.nodes)} nodes cannot be told apart by pairs", expected="at least 3 nodes",
            fix="--nodes 4",
        )  # fmt: skip
    with _measuring(measurer):
        found = slow_nodes.search(
            len(site.nodes),
            lambda a, b: measurer.sweeper.pair_bps(site, knobs, (a, b)),
        )
        hosts = [m.host for m in measurer.run.nodes]
        names = hosts or [f"node {i}" for i in range(len(site.nodes))]
    lines = []
    for pair in sorted(found.pairs, key=lambda p: p.bps):
        slow = "  slow" if pair.bps < found.limit_bps else ""
        lines.append(f" {names[pair.a]} - {names[pair.b]}  {si(pair.bps, 'B/s')}{slow}")
    lines.append(f" {len(found.pairs)} pairs; slow is under {si(found.limit_bps, 'B/s')}")
    lines += [
        f" NODE  {names[n]} is slow with every node that it was paired with" for n in found.nodes
    ]
    lines += [
        f" LINK  {names[p.a]} - {names[p.b]} is slow, and both are well with others"
        for p in found.links
    ]
    if not found.nodes and not found.links:
        lines.append(" no node and no link is slower than the others")
    if exclude is not None:
        exclude.write_text("".join(f"{names[n]}\n" for n in found.nodes))
        lines.append(f" {len(found.nodes)} nodes to leave out: {exclude}")
    bad = bool(found.nodes or found.links)
    return (Exit.FAILED if bad else Exit.PASSED), to_doc(found), lines


def recover(
    measurer: Measurer, site: Site, cases: Sequence[CaseSpec], trials: int, rerun: str
) -> tuple[Exit, Json, list[str]]:
    """Break each case and have it go on: by crash, hang and loss of nodes, in other worlds too.

    A course that breaks in another way than it was meant to is an ERROR; the others go on.
    """
    _needs_two(site)
    head = measurer.catalogue.get("engines", site.engine).head["ENGINE"]
    broken = False
    with _measuring(measurer):
        for case in cases:
            courses = [(Course(case=case, fault=Fault.KILL), trials)]
            courses.append((Course(case=case, fault=Fault.KILL, asynchronous=True), trials))
            if len(site.nodes) == 1:
                courses += [(course, 1) for course in resharded(case)]
            faults = (Fault.HANG, *map(Fault, head.get("faults", ())))
            courses += [(Course(case=case, fault=fault), trials) for fault in faults]
            for course, times in courses:
                try:
                    measurer.recoverer.measure(course, times)
                except LaunchError as error:
                    broken = True
                    measurer.run.notes.append(f"ERROR {course.name}: {error.what}")
    exit_, document, lines = _judged(measurer, rerun)
    return (Exit.ERROR if broken else exit_), document, lines


@contextmanager
def _measuring(measurer: Measurer) -> Iterator[None]:
    """From warm agents to none; what was measured until something broke is kept."""
    measurer.warm()
    try:
        yield
    except BaseException:
        measurer.run.save(complete=False)
        raise
    finally:
        measurer.progress.clear()
        measurer.close()


def _judged(measurer: Measurer, rerun: str) -> tuple[Exit, Json, list[str]]:
    """What was measured, written down and judged."""
    record = measurer.run.save(complete=True)
    lines = tables.summary(record, text.shown(measurer.run.folder), rerun, text.columns())
    return exit_status([v.counts for v in record.verdicts]), to_doc(record), lines


def _needs_two(site: Site) -> None:
    if site.world_size < 2:
        raise SpecError("one rank is alone", expected="at least 2 ranks", fix="--cpus 2")
