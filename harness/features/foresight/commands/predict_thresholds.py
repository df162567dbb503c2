"""The command ``predict thresholds``: which thresholds a fabric can meet, and with which links."""

import argparse
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.reading import load
from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.base.formatting import si
from harness.cases.targets import bounds_of, plans_of
from harness.features.foresight import possible
from harness.features.foresight.own.swept import links
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.possible import Chance, Possibility, RuleLeftOut
from harness.host.devices import Hardware, peaks
from harness.interface.cli import measuring, planned_hardware
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.measure.describe_cache import DescribeCache

HELP = {
    "predict thresholds": "estimate which thresholds a system can meet, without measuring on it",
}
EXAMPLES = {
    "predict thresholds": (
        "predict thresholds suites --on 8x8xh100",
        "predict thresholds suites/test_claims.py --on my.toml",
    ),
}
_WORST_FIRST = (Chance.NO, Chance.OPEN, Chance.YES)
#: Width of a case below a threshold, in characters.
NAME_WIDTH = 28
_MEANINGS = {"links": "factor by which links must be faster for the middle to meet the bound"}
_WORDS = {Chance.NO: "no", Chance.OPEN: "open", Chance.YES: "yes"}


class Allowed(TypedDict):
    possible: Sequence[Possibility]
    left_out: Sequence[RuleLeftOut]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "predict thresholds": (Allowed,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    planned_hardware.add_hardware_options(sub)
    sub.add_argument(
        "-m",
        metavar="MARKS",
        default="",
        dest="marks",
        help="select tests by their marks, as for pytest -m (default: all tests)",
    )


def act(asked: Asked) -> Answer:
    """Return a row for each threshold on each case; nothing is launched or judged."""
    args = asked.options
    width = text.columns()
    on = planned_hardware.on(args.on)
    if on is None:
        raise SpecError(
            "no hardware was given",
            expected="--on HARDWARE",
            fix="scaleproof predict thresholds --on 8xh100",
        )
    catalogue, here = measuring.site(asked)
    site = planned_hardware.site_of(on)
    chosen = planned_hardware.tier(args.marks) if args.marks else lambda marks: True
    plans = plans_of(args.target, site, catalogue, measuring.settings(asked), chosen=chosen)
    required = bounds_of(args.target, site, catalogue, chosen)
    planned = measuring.session(asked, catalogue, here, required=required)
    with contextlib.closing(planned) as session:
        session.describe([arm.case for p in plans for arm in p.arms], DescribeCache(catalogue))
        run = session.run
        where = _site(on, args.on)
        answers = [
            answer
            for plan in plans
            for answer in possible.possibilities(
                plan, run.described, run.thresholds, where, catalogue
            )
        ]
        answers += possible.without_plan(run.thresholds, plans, str(site.device), args.target)
    unique = list(dict.fromkeys(answers))
    possibilities = [answer for answer in unique if isinstance(answer, Possibility)]
    possibilities.sort(key=lambda possibility: _WORST_FIRST.index(possibility.chance))
    left_out = [answer for answer in unique if isinstance(answer, RuleLeftOut)]
    lines = _lines(possibilities, on, width)
    for why in dict.fromkeys(answer.why for answer in left_out):
        names = ", ".join(dict.fromkeys(out.rule for out in left_out if out.why == why))
        lines += text.wrap(f" left out  {names}: {why}", width, 11)
    return Answer(
        document={"possible": to_doc(tuple(possibilities)), "left_out": to_doc(tuple(left_out))},
        lines=lines,
        exit=Exit.PASSED if possibilities else Exit.NOTHING_JUDGED,
    )


def _site(on: Hardware, words: str) -> possible.FabricSite:
    """Return links and peaks of the hardware; the links of a run come from its sweeps."""
    fabric = Fabric(
        per_node=max(on.nodes), intra_bytes_per_s=on.link_bytes, inter_bytes_per_s=on.network_bytes
    )
    known = peaks(on.machine.gpu)
    if not Path(words).is_dir():
        return possible.FabricSite(machine=on.machine, fabric=fabric, peaks=known, beliefs={})
    swept, _, beliefs, _ = links(load(Path(words)))
    return possible.FabricSite(machine=on.machine, fabric=swept, peaks=known, beliefs=beliefs)


def _lines(possibilities: list[Possibility], on: Hardware, width: int) -> list[str]:
    """Return the table, the worst chances first, and an explanation of its columns."""
    if not possibilities:
        return text.wrap(
            f" no threshold requires a speed or an efficiency of a case on {on.name}", width, 1
        )
    limits = {_limit(possibility) for possibility in possibilities}
    names = Counter(_name(possibility) for possibility in possibilities)
    columns: list[Column[Possibility]] = [
        Column("threshold @ ranks", 10, lambda o: _name(o, full=names[_name(o)] > 1), left=True),
        Column("asks", 8, lambda o: f"{o.bound:g}"),
        Column("may reach", 9, lambda o: f"{o.middle:.2f} [{o.low:.2f}, {o.high:.2f}]"),
        Column("possible", 9, lambda o: _WORDS[o.chance], left=True),
        Column("links", 6, _faster),
        Column("limited by", 5, lambda o: _limit(o) if len(limits) > 1 else "", left=True),
    ]
    table = Table(columns=columns, rows=possibilities).lines(width)
    notes = ["[..] is an 80 % interval from data sheets and published scaling results"]
    notes += [text.legend(_MEANINGS, table[0])]
    notes += [f"limited by the {limit} everywhere" for limit in limits if len(limits) == 1]
    of = Counter(possibility.chance for possibility in possibilities)
    links = f"{si(on.link_bytes, 'B/s')} in a node"
    links += f", {si(on.network_bytes, 'B/s')} between nodes per GPU" if len(on.nodes) > 1 else ""
    listed = ", ".join(f"{of[chance]} {chance}" for chance in _WORST_FIRST if of[chance])
    return [
        text.rule(f"{on.name}: {links}", width),
        *table,
        "",
        *text.wrap(f" {'; '.join(filter(None, notes))}", width, 1),
        f" {listed}",
    ]


def _name(possibility: Possibility, *, full: bool = False) -> str:
    """Return threshold and ranks, and on a second line the case if several cases share both."""
    name = f"{possibility.rule}@{possibility.world}"
    return f"{name}\n  {text.shortened(possibility.case, NAME_WIDTH)}" if full else name


def _limit(possibility: Possibility) -> str:
    return str(possibility.limiter) if possibility.fits else "memory"


def _faster(possibility: Possibility) -> str:
    if possibility.times is None:
        return "no help"
    return "enough" if possibility.times == 1.0 else f"x{possibility.times:.2g}"
