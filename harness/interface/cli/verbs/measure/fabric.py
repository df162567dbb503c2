"""``fabric`` and ``pairs``: how fast ranks exchange data, and which node or link is slower."""

import argparse
from pathlib import Path

from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.base.numbers import si
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.measure import slow_nodes
from harness.measure.confirming import USUAL
from harness.measure.sweeper import Sweeper
from harness.spec import Site

HELP = dict(
    fabric="check, time and judge every collective between the ranks",
    pairs="find the node or link that is slower than the others, by pairs of nodes",
)
EXAMPLES = dict(
    fabric=(
        "fabric --gpus 8",
        "fabric --cpus 2 --sweeps 2",
    ),
    pairs=(
        "pairs --engine slurm --nodes 8x8",
        "pairs --engine emulated --nodes 3x1",
    ),
)


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    measuring.add_to(sub, cases=False)
    if verb == "pairs":
        sub.add_argument(
            "--exclude", type=Path, metavar="FILE", help="write the slow nodes to this file"
        )
        return
    sub.add_argument(
        "--sweeps", type=measuring.positive, default=USUAL, metavar="N",
        help=f"sweeps to run (default: {USUAL})",
    )  # fmt: skip


def act(asked: Asked) -> Answer:
    """Sweep every world of the site and judge it; a FAIL is measured again before it counts."""
    if asked.verb == "pairs":
        return _pairs(asked)
    known, site = measuring.site(asked)
    needs_two(site)
    knobs = known.checked(
        [known.get("engines", site.engine)], measuring.settings(asked), asked.verb
    )
    with measuring.session(asked, known, site) as session:
        Sweeper(session).measure(site, knobs, asked.options.sweeps)
    return measuring.judged(session, session.save(complete=True), asked)


def _pairs(asked: Asked) -> Answer:
    """Measure nodes pair by pair, and say which ones are slow wherever they are paired."""
    known, site = measuring.site(asked)
    if len(site.nodes) < 3:
        raise SpecError(
            f"pairs cannot tell a slow node from a slow link with {len(site.nodes)} nodes",
            expected="at least 3 nodes", fix="--nodes 4",
        )  # fmt: skip
    knobs = known.checked(
        [known.get("engines", site.engine)], measuring.settings(asked), asked.verb
    )
    with measuring.session(asked, known, site) as session:
        sweeper = Sweeper(session)
        session.ready()
        hosts = [m.host for m in session.run.nodes]
        if len(set(hosts)) < len(site.nodes):  # emulated on one machine
            hosts = [f"node {i}" for i in range(len(site.nodes))]
        suspects = slow_nodes.search(hosts, lambda a, b: sweeper.pair_bps(site, knobs, (a, b)))
        session.run.paired(suspects)
        session.save(complete=True)
    lines = []
    for pair in sorted(suspects.pairs, key=lambda p: p.bps):
        slow = "  slow" if pair.bps < suspects.limit_bps else ""
        lines.append(f" {pair.a} - {pair.b}  {si(pair.bps, 'B/s')}{slow}")
    lines.append(f" {len(suspects.pairs)} pairs; slow is under {si(suspects.limit_bps, 'B/s')}")
    lines += [f" NODE  {host} is slow with every partner" for host in suspects.nodes]
    lines += [
        f" LINK  {p.a} - {p.b} is slow, but both nodes are fast with others" for p in suspects.links
    ]
    bad = bool(suspects.nodes or suspects.links)
    if not bad:
        lines.append(" no node and no link is slower than the others")
    if (exclude := asked.options.exclude) is not None:
        exclude.write_text("".join(f"{host}\n" for host in suspects.nodes))
        lines.append(f" {len(suspects.nodes)} slow nodes written to {exclude}")
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    return Answer(document=to_doc(suspects), lines=lines, exit=Exit.FAILED if bad else Exit.PASSED)


def needs_two(site: Site) -> None:
    """SpecError for a site of one rank."""
    if site.world_size < 2:
        raise SpecError(
            "at least 2 ranks are needed: one rank alone does not communicate",
            expected="--cpus 2 or more, or --gpus 2", fix="--cpus 2",
        )  # fmt: skip
