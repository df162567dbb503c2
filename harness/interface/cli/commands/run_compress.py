"""The command ``run compress``: bytes, cost and break-even link rate of gradient compressors.

Compressors are called codecs in options and tables.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from harness.analysis.choices import compressors
from harness.analysis.choices.compressors import DENSE, EncodingCost, TunedLoss
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, SpecError, nearest
from harness.base.formatting import si
from harness.cases import (
    Arm,
    CaseSpec,
    Catalogue,
    Mode,
    Optimizer,
    Plan,
    Protocol,
    Role,
    Site,
)
from harness.cases.recipes import LEARNING, beside
from harness.cases.targets import normalise
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import codecs, side_by_side, text
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule
from harness.measure.measurer import Measurer
from harness.measure.session import Session
from harness.record import Status

HELP = {
    "run compress": "measure what each gradient compressor costs, and at which link rate it pays",
}
EXAMPLES = {
    "run compress": (
        "run compress decoder-nano --cpus 2",
        "run compress mlp-wide --engine emulated --nodes 2x1 --confirm int8",
    ),
}

#: Name of the arm whose ranks do not communicate; a useful compressor learns better than this arm.
APART = "no exchange"
#: Steps of each compared training, which are enough for losses to differ.
STEPS = 96
METRICS = ("step_s", "throughput_ratio", "sent_bytes")
#: Protocol on shaped links. It has few steps, because a step over a slow link takes long.
LINK = Protocol(steps=16, cut=4, max_blocks=3)
#: Link rates at which a break-even rate is confirmed, as multiples of it.
AROUND = (0.5, 1.0, 2.0)
#: Largest relative error of a confirmed prediction.
CLOSE = 0.10


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    sub.add_argument(
        "target", metavar="model", help="a model and its size, for example decoder-nano"
    )
    measuring.add_measuring_options(sub, "records")
    sub.add_argument(
        "--codecs", default="", metavar="A,B", help="only these compressors (default: all)"
    )
    sub.add_argument(
        "--rates",
        default="100,1000,10000",
        metavar="MBIT,..",
        help="link rates at which step times are shown (default: 100,1000,10000)",
    )
    sub.add_argument(
        "--no-feedback",
        action="store_true",
        dest="bare",
        help="also measure each compressor without its error feedback",
    )
    sub.add_argument(
        "--tuned",
        action="store_true",
        help="also train each compressor with the optimizer of its publication, at its best"
        " learning rate",
    )
    sub.add_argument(
        "--confirm",
        default="",
        metavar="CODEC",
        help="measure this compressor and dense training on emulated links of 0.5, 1 and 2 times"
        " its break-even rate",
    )


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Predicted and measured step times (s) of dense and compressed training on a shaped link.

    ``rate`` is the rate of this link in bit/s.
    """

    rate: float
    dense_s: float
    codec_s: float
    measured_dense_s: float
    measured_codec_s: float

    @property
    def off(self) -> float:
        """Return the larger relative error of the two predictions."""
        return max(
            abs(self.dense_s / self.measured_dense_s - 1),
            abs(self.codec_s / self.measured_codec_s - 1),
        )

    @property
    def tie(self) -> bool:
        """Return whether the predicted times are so close that either may be faster."""
        return abs(self.dense_s / self.codec_s - 1) < CLOSE

    @property
    def won(self) -> bool:
        """Return whether the predicted winner was faster."""
        return (self.codec_s < self.dense_s) == (self.measured_codec_s < self.measured_dense_s)

    @property
    def right(self) -> bool:
        """Return whether both the times and the winner are as predicted."""
        return self.off <= CLOSE and (self.tie or self.won)


def act(asked: Asked) -> Answer:
    """Return a table of compressors; with ``--confirm`` also predictions and measurements."""
    args = asked.options
    width = text.columns()
    catalogue, site = measuring.site(asked)
    _refuse(args, site, catalogue)
    rates = _rates(args.rates)
    plan = _plan(args.target, _named(catalogue, args), site, catalogue, bare=args.bare)
    tuned_plan = _tuned(args.target, _named(catalogue, args), site, catalogue)
    session = measuring.session(asked, catalogue, site)
    confirmed: list[Confirmed] = []
    without_loss: list[str] = []

    def follow(measurer: Measurer) -> None:
        facts = session.run.described[plan.arms[0].case.hash].facts
        if args.tuned and (facts is None or facts.loss_floor is None):
            without_loss.append(
                f" tuned    not trained: the losses of {args.target} cannot be compared, because"
                " the entropy of its data is unknown; for decoders it is known"
            )
        elif args.tuned:
            session.run.announce([tuned_plan])
            measurer.measure([tuned_plan])
        if args.confirm:
            confirmed.extend(_confirm(session, measurer, plan, args.confirm))

    measured = measuring.measured(session, [plan], follow)
    record = measured.record
    costs = compressors.costs(record, plan)
    link_bps = compressors.link_bps(record, plan.arms[0].case)
    judged = measuring.judged(session, record, asked)
    shown = side_by_side.of_plan(record, plan, rates).lines(width)
    document: dict[str, Json] = {
        "link_bps": _finite(link_bps),
        "costs": _documents(costs),
        "confirmed": to_doc(tuple(confirmed)),
        "run": str(session.run.folder),
    }
    shown += [line for sentence in without_loss for line in text.wrap(sentence, width, 10)]
    if args.tuned and not without_loss:
        document["tuned"] = to_doc(tuple(compressors.best(record, tuned_plan)))
        shown += [line for table in codecs.tuned_tables(record) for line in table.lines(width)]
    shown += _told(confirmed, args.confirm, width)
    failed = any(verdict.status is Status.ERROR for verdict in record.verdicts)
    if args.tuned and not without_loss and not measured.interrupted:
        failed |= bool(compressors.untrained(record, tuned_plan))
    missed = any(not c.right for c in confirmed)
    shown.append(f" report   scaleproof report {text.shown(session.run.folder)}")
    outcomes = {Exit.ERROR: failed, Exit.FAILED: missed, Exit.USAGE: bool(without_loss)}
    worst = next((exit_ for exit_, holds in outcomes.items() if holds), Exit.PASSED)
    return measured.ended(replace(judged, document=document, lines=shown, exit=worst))


def _refuse(args: argparse.Namespace, site: Site, catalogue: Catalogue) -> None:
    """Raise SpecError for a single rank, or if ``--confirm`` needs an engine that shapes links."""
    if site.world_size < 2:
        raise SpecError(
            "a single rank sends nothing",
            where=args.target,
            expected="at least 2 ranks",
            fix=f"scaleproof run compress {args.target} --cpus 2",
        )
    if args.confirm and not catalogue.get("engines", site.engine).engine.shapes_links:
        raise SpecError(
            f"engine {site.engine} cannot set link rates",
            where=f"--confirm {args.confirm}",
            expected="an engine that can set link rates, such as emulated",
            fix=f"scaleproof run compress {args.target} --engine emulated --nodes 2x1"
            f" --confirm {args.confirm}",
        )


def _rates(text: str) -> list[float]:
    """Return rates like ``100,1000`` (Mbit/s) in bit/s; raise SpecError for anything else."""
    try:
        rates = [float(part) * 1e6 for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0 or math.isinf(max(rates)):
        raise SpecError(
            f"--rates {text}",
            expected="numbers above 0, in Mbit/s, separated by commas",
            fix="--rates 100,1000,10000",
        )
    return rates


def _named(catalogue: Catalogue, args: argparse.Namespace) -> list[str]:
    """Return the names of the requested compressors, by default all that are correct.

    Raise SpecError for an unknown name.
    """
    offered = [
        name
        for name, entry in catalogue.entries["compressors"].items()
        if not entry.head.get("CONTROL") and entry.head["ERROR_BOUND"] != 0
    ]
    asked = [name for name in args.codecs.split(",") if name] or offered
    if args.confirm:
        asked = list(dict.fromkeys([*asked, args.confirm]))
    for name in asked:
        if name not in catalogue.entries["compressors"]:
            raise SpecError(
                f"no compressor named {name!r}{nearest(name, offered)}",
                expected=", ".join(offered),
                fix="scaleproof run list compressors",
            )
    return asked


def _strategies(catalogue: Catalogue) -> tuple[str, str]:
    """Return the dense strategy with a hook that can be replaced, and the strategy that compresses
    in this hook.
    """
    strategies = catalogue.entries["strategies"].items()
    hooked = next(name for name, entry in strategies if entry.head.get("HOOKED"))
    return hooked, next(name for name, entry in strategies if entry.supports.compressor)


def _plan(
    model: str, names: Sequence[str], site: Site, catalogue: Catalogue, *, bare: bool
) -> Plan:
    """Return a plan with dense training, no exchange, bf16 and every compressor in its blocks."""
    hooked, coding = _strategies(catalogue)
    halves = [
        name for name, entry in catalogue.entries["compressors"].items() if entry.head.get("BESIDE")
    ]

    def case(codec: str, **knobs: bool) -> CaseSpec:
        of_codec = {f"{codec}.{knob}": value for knob, value in knobs.items()}
        return catalogue.normalise(
            site.case(f"{coding}:{codec}/{model}", Mode.WEAK, knobs=of_codec)
        )

    dense = catalogue.normalise(site.case(f"{hooked}/{model}", Mode.WEAK))
    cases = {DENSE: dense}
    for name in dict.fromkeys((*halves, *names)):
        cases[name] = case(name)
        if bare and catalogue.get("compressors", name).knobs.get("feedback") is True:
            cases[f"{name}, no feedback"] = case(name, feedback=False)
    cases[APART] = catalogue.normalise(replace(dense, communicate=False))
    protocol = replace(LEARNING, steps=STEPS)
    plan = beside(f"{model} codecs", cases, METRICS, protocol=protocol)
    apart = [replace(arm, role=Role.ABLATION) for arm in plan.arms if not arm.case.communicate]
    others = [arm for arm in plan.arms if arm.case.communicate]
    asked = [
        contrast
        for contrast in plan.contrasts
        if contrast.subject != APART or contrast.metric != "sent_bytes"
    ]
    return replace(plan, arms=(*others, *apart), contrasts=tuple(asked), to_loss=0.3)


def _tuned(model: str, names: Sequence[str], site: Site, catalogue: Catalogue) -> Plan:
    """Return a plan of each compressor with the optimizer of its ``METHOD``, and of dense training.

    Each is trained at every learning rate of its grid. Only losses are compared, so the plan
    consists of pilots.
    """
    hooked, coding = _strategies(catalogue)
    cases: dict[str, CaseSpec] = {}

    def add(target: str, optimizer: str, knobs: Mapping[str, Json]) -> None:
        case = catalogue.normalise(
            site.case(f"{target}/{model}", Mode.WEAK, optimizer=Optimizer(optimizer), knobs=knobs)
        )
        for lr in compressors.grid(case):
            cases[f"{case.compressor or DENSE}, {optimizer} at {lr:g}"] = replace(case, lr=lr)

    methods = {name: catalogue.get("compressors", name).head.get("METHOD") for name in names}
    for name, method in methods.items():
        if not method:
            continue
        dense_steps = {f"{coding}.start": method["start"]} if "start" in method else {}
        if dense_steps:
            add(f"{hooked}", Optimizer.ADAMW, {})  # the method approximates AdamW
        else:
            add(f"{hooked}", method["optimizer"], {})
        add(f"{coding}:{name}", method["optimizer"], dense_steps)
    return Plan(
        name=f"{model}{codecs.TUNED}",
        arms=tuple(Arm(name=name, case=case, role=Role.SUBJECT) for name, case in cases.items()),
        contrasts=(),
        protocol=Protocol(steps=STEPS, cut=6, min_blocks=0, max_blocks=1, fixed=True),
        to_loss=0.3,
    )


def _confirm(
    session: Session,
    measurer: Measurer,
    plan: Plan,
    name: str,
) -> list[Confirmed]:
    """Measure dense and compressed training on links of three rates around the break-even rate.

    Raise SpecError if the compressor was not measured or has no break-even rate.
    """
    before = session.run.bare()
    link_bps = compressors.link_bps(before, plan.arms[0].case)
    by_name = {cost.name: cost for cost in compressors.costs(before, plan)}
    if name not in by_name or DENSE not in by_name:
        raise SpecError(
            f"{name} was not measured", expected="launches without an ERROR", fix="--codecs"
        )
    pays = by_name[name].pays[DENSE].rate
    if not 0 < pays < math.inf:
        message = "never" if pays == 0 else "always"
        raise SpecError(
            f"{name} {message} wins, so there is no break-even rate to confirm",
            where=plan.name,
            expected="a compressor that wins on slow links and loses on fast ones",
            fix="--codecs",
        )
    arms = {a.name: a.case for a in plan.arms}
    knob = f"{session.settings.engine}.rate_mbit"
    confirmed = []
    for factor in AROUND:
        rate = round(pays * factor / 1e6, 1)
        cases = {
            arm: replace(arms[arm], knobs={**arms[arm].knobs, knob: rate}) for arm in (DENSE, name)
        }
        plan_of_rate = beside(f"{plan.name} at {rate:g} Mbit/s", cases, ("step_s",), protocol=LINK)
        plan_of_rate = normalise(plan_of_rate, session.catalogue)
        session.run.announce([plan_of_rate])
        measurer.measure([plan_of_rate])
        step_s_of = {
            cost.name: cost.step_s for cost in compressors.costs(session.run.bare(), plan_of_rate)
        }
        if len(step_s_of) == len(cases):
            confirmed.append(
                Confirmed(
                    rate=rate * 1e6,
                    dense_s=by_name[DENSE].at(rate * 1e6, link_bps),
                    codec_s=by_name[name].at(rate * 1e6, link_bps),
                    measured_dense_s=step_s_of[DENSE],
                    measured_codec_s=step_s_of[name],
                )
            )
    return confirmed


def _told(confirmed: Sequence[Confirmed], name: str, width: int) -> list[str]:
    """Return a table of predictions and measurements with a row for each rate."""
    if not confirmed:
        return []
    columns: list[Column[Confirmed]] = [
        Column("link", 9, lambda c: si(c.rate, "bit/s"), left=True),
        Column("dense", 7, lambda c: si(c.dense_s, "s")),
        Column("measured", 7, lambda c: si(c.measured_dense_s, "s")),
        Column(name, 8, lambda c: si(c.codec_s, "s")),
        Column("measured", 8, lambda c: si(c.measured_codec_s, "s")),
        Column("off", 9, lambda c: f"{c.off:.1%}{' !' if c.off > CLOSE else ''}"),
        Column(
            "winner",
            9,
            lambda c: "a tie" if c.tie else "as predicted" if c.won else "WRONG",
            left=True,
        ),
    ]
    return [
        rule(f"{name} on shaped links", width),
        *Table(columns=columns, rows=confirmed).lines(width),
    ]


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _documents(costs: Sequence[EncodingCost]) -> list[Json]:
    """Return the costs for JSON, which has no infinity; None means any rate."""
    documents = []
    for cost in costs:
        pays = {
            other: {end: _finite(getattr(rates, end)) for end in ("rate", "low", "high")}
            for other, rates in cost.pays.items()
        }
        documents.append({**to_doc(replace(cost, pays={})), "pays": pays})
    return documents


class Rates(TypedDict):
    rate: float | None
    low: float | None
    high: float | None


class CodecCost(TypedDict):
    name: str
    case: str
    step_s: float
    sent_bytes: float
    bytes_per_parameter: float
    encode_s: float | None
    decode_s: float | None
    loss: float | None
    pays: Mapping[str, Rates]
    exchange_s: float | None


class Compressed(TypedDict):
    link_bps: float | None
    costs: Sequence[CodecCost]
    confirmed: Sequence[Confirmed]
    tuned: NotRequired[Sequence[TunedLoss]]
    run: str


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run compress": (Compressed,),
}
