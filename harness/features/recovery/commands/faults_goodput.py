"""The command ``faults goodput``: the share of wall time that trains under faults.

It also gives the best interval between checkpoints, by Daly's formula.

two short training runs -> costs -> prediction for a schedule of faults
the schedule is injected into a training run -> measured goodput
"""

import argparse
import functools
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, TypedDict

from harness.base.documents import to_doc
from harness.base.errors import Exit, SpecError
from harness.base.formatting import si
from harness.cases.targets import case_of
from harness.features.recovery import goodput
from harness.features.recovery.goodput import Costs
from harness.features.recovery.player import Player
from harness.features.recovery.report import goodput_table as report
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text

HELP = {
    "faults goodput": "measure the share of time that trains while faults are injected",
}
EXAMPLES = {
    "faults goodput": (
        "faults goodput ddp/decoder-nano --cpus 2 --mtbf 20s --steps 600 --plays 4",
        "faults goodput fsdp/decoder-large --gpus 64 --nodes 8x8 --engine slurm --mtbf 6h --short",
    ),
}


class GoodputResult(TypedDict):
    costs: Costs
    best_every: int
    every: int
    expected: float
    foretold: float | None
    measured: float | None
    terms_ns: Mapping[str, int] | None
    run: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "faults goodput": (GoodputResult,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments for the case, its checkpoints, and the faults."""
    sub.add_argument("case", metavar="CASE", help="for example ddp/decoder-nano")
    sub.add_argument("--mtbf", required=True, metavar="T", help="mean time between faults: 20s, 6h")
    sub.add_argument(
        "--every",
        type=measuring.positive,
        metavar="N",
        help="steps between checkpoints (default: Daly's best interval)",
    )
    sub.add_argument(
        "--steps",
        type=measuring.positive,
        default=400,
        metavar="N",
        help="steps of the training run (default: 400)",
    )
    sub.add_argument("--seed", type=int, default=0, help="seed of the fault schedule (default: 0)")
    sub.add_argument(
        "--plays",
        type=measuring.positive,
        default=1,
        metavar="N",
        help="number of fault schedules; a threshold needs four (default: 1)",
    )
    sub.add_argument(
        "--short", action="store_true", help="measure only the costs, without a fault schedule"
    )
    measuring.add_measuring_options(sub, "records")


def act(asked: Asked) -> Answer:
    """Measure the costs, then runs under faults, and return both with the predictions."""
    args = asked.options
    width = text.columns()
    catalogue, site = measuring.site(asked)
    case = catalogue.normalise(case_of(args.case, site, measuring.settings(asked)))
    mtbf_s = options.seconds(args.mtbf, "mtbf") or 0.0
    if mtbf_s <= 0:
        raise SpecError(f"--mtbf {args.mtbf}", expected="a time above 0", fix="--mtbf 20s")
    if not catalogue.get("strategies", case.strategy).supports.recovers:
        raise SpecError(
            f"{case.strategy} keeps state that checkpoints do not contain",
            where=case.id,
            expected="a strategy whose checkpoints contain its whole state",
            fix="scaleproof run list strategies",
        )
    with measuring.session(asked, catalogue, site) as session:
        player = Player(session)
        costs = player.costs(case, args.every) if args.every else player.costs(case)
        best = goodput.best_every(costs, mtbf_s)
        steps_between = args.every or min(best, args.steps)
        lines = _costs(costs, steps_between, best, mtbf_s, width)
        document = {
            "costs": to_doc(costs),
            "best_every": best,
            "every": steps_between,
            "expected": goodput.expected(costs, steps_between, mtbf_s),
            "foretold": None,
            "measured": None,
            "terms_ns": None,
        }
        plays = []
        told_of_each = []
        for seed in range(args.seed, args.seed + (0 if args.short else args.plays)):
            faults = functools.partial(goodput.schedule, mtbf_s, seed, case.world_size)
            played = player.play(case, args.steps, steps_between, faults(), mtbf_s, seed)
            foretold = goodput.play(costs, args.steps, steps_between, faults(), at_steps=True)
            plays.append((played, goodput.share(foretold)))
            told_of_each += report.of_play(played, foretold, width)
        if plays:
            lines = [*told_of_each, *lines]
            terms = [goodput.terms_ns(played) for played, _ in plays]
            document |= {
                "foretold": fmean(share for _, share in plays),
                "measured": fmean(goodput.goodput(played) for played, _ in plays),
                "terms_ns": {name: sum(of[name] for of in terms) for name in terms[0]},
            }
        record = session.save(complete=True)
    answer = measuring.judged(session, record, asked)
    lines.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    # Without a threshold there are no verdicts, and the goodput is only reported.
    exit_ = answer.exit if record.verdicts else Exit.PASSED
    return replace(answer, document={**document, "run": record.run}, lines=lines, exit=exit_)


def _costs(costs: goodput.Costs, every: int, best: int, mtbf_s: float, width: int) -> list[str]:
    """Return lines on the cost of each event, and the expected goodput of a long training run."""
    costs_s = (
        ("step", costs.step_s),
        ("checkpoint", costs.save_s),
        ("detect", costs.detect_s),
        ("stop", costs.stop_s),
        ("restart", costs.restart_s),
        ("load", costs.load_s),
    )
    words = ", ".join(f"{name} {si(seconds, 's')}" for name, seconds in costs_s)
    long_run = (
        f" goodput of a long training run: {goodput.expected(costs, every, mtbf_s):.1%} with a"
        f" checkpoint every {every} steps, {goodput.expected(costs, best, mtbf_s):.1%} with the"
        f" best interval of {best} steps"
    )
    return [*text.wrap(f" cost of one event: {words}", width, 1), *text.wrap(long_run, width, 1)]
