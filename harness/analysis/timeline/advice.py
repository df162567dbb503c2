"""Remedies for large terms of a budget: the change, its potential gain, and its command."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.analysis.rerun_command import command
from harness.analysis.timeline.losses import WORDS, Losses
from harness.base.documents import Json
from harness.base.stats import evenly
from harness.cases import CaseSpec, Catalogue, Data, Mode, Settings
from harness.record import Budget, Expected, LaunchRecord, RankRecord, Term
from harness.record.budget import EXPOSED

#: Factors by which the size of gradient buckets is multiplied in remedies.
BUCKETS = (0.25, 4.0)


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change of a case. ``change`` maps names of fields and knobs to their new values.

    ``alike`` says whether the training still computes the same result. It is False for compressors,
    which lose information, and for larger batches, which change the training.
    """

    name: str
    change: Mapping[str, Json]
    alike: bool = True

    def of(self, case: CaseSpec) -> CaseSpec:
        """Return the case with the change applied."""
        fields: dict[str, Any] = {
            key: value for key, value in self.change.items() if "." not in key
        }
        knobs = {key: value for key, value in self.change.items() if "." in key}
        case = case.fed_by(fields.pop("data", case.data)) if "data" in fields else case
        return replace(case, **fields, knobs={**case.knobs, **knobs})


def remedies(
    term: Term, case: CaseSpec, expected: Expected, catalogue: Catalogue
) -> Iterator[Remedy]:
    """Yield the remedies that may reduce a term, beginning with the smallest change."""
    settings = {Term(t): setting.partition("=") for t, setting in expected.remedies.items()}
    if term in settings or (term is Term.WAIT and Term.BUBBLE in settings):
        name, _, value = settings.get(term) or settings[Term.BUBBLE]
        yield Remedy(name=f"{name}={value}", change={name: _number(value)})
    if term in (Term.TRANSFER, Term.UNDIVIDED) and expected.stages == 1:
        yield from _of_communication(case, catalogue)
    if term in (Term.DATA, Term.MOVE):
        yield from _of_input(case, catalogue)
    if term in (*EXPOSED, Term.LAUNCH, Term.IDLE, Term.OTHER):
        yield _twice(case, expected)


def _of_input(case: CaseSpec, catalogue: Catalogue) -> Iterator[Remedy]:
    """Yield a remedy with twice as many loader workers, then remedies with faster inputs."""
    entry = catalogue.get("inputs", case.data)
    facts = entry.head["INPUT"]
    if "more" in facts:
        name = f"{case.data}.{facts['more']}"
        twice = 2 * max(1, int(case.knobs_of(case.data, entry.knobs)[facts["more"]]))
        yield Remedy(name=f"{name}={twice}", change={name: twice})
    for other in facts["instead"]:
        yield Remedy(name=f"data={other}", change={"data": other})


def _of_communication(case: CaseSpec, catalogue: Catalogue) -> Iterator[Remedy]:
    """Yield remedies with smaller or larger gradient buckets, then remedies with a compressor.

    Compressors that are controls, which are incorrect on purpose, are omitted.
    """
    knob = "bucket_cap_mb"
    defaults = catalogue.get("strategies", case.strategy).knobs
    if knob in defaults:
        now = float(case.knobs_of(case.strategy, defaults)[knob])
        for factor in BUCKETS:
            name = f"{case.strategy}.{knob}"
            yield Remedy(name=f"{name}={now * factor:g}", change={name: now * factor})
    hooked = catalogue.get("strategies", case.strategy).head.get("HOOKED")
    if not hooked or any(key.startswith(f"{case.strategy}.") for key in case.knobs):
        return  # the strategy with compressors does not have these knobs
    for other in catalogue.entries["strategies"].values():
        if not other.head["SUPPORTS"].get("compressor"):
            continue
        for codec, entry in catalogue.entries["compressors"].items():
            if entry.head.get("ERROR_BOUND") and not entry.head.get("CONTROL"):
                change: dict[str, Json] = {"strategy": other.name, "compressor": codec}
                yield Remedy(name=f"{other.name}:{codec}", change=change, alike=False)


def _twice(case: CaseSpec, expected: Expected) -> Remedy:
    """Return the remedy that doubles the work for each exchange of gradients."""
    strong = case.mode is Mode.STRONG
    batch = expected.global_batch if strong else expected.global_batch // case.world_size
    field = "global_batch" if strong else "micro_batch"
    return Remedy(name=f"{field}={2 * batch}", change={field: 2 * batch}, alike=False)


def _number(value: str) -> Json:
    try:
        return int(value)
    except ValueError:
        return value


#: Smallest share of the step for which a term is reported.
LARGE = 0.03
#: Moving blocks between stages is advised only if the longest stage becomes shorter by at least
#: this share.
MOVED = 0.05

#: Advice for a user's script, whose settings the harness cannot change.
_FEWER_BYTES = (
    "a larger batch on each rank, no_sync() while gradients accumulate, or gradients in 16 bits"
    " (register_comm_hook with bf16_compress_hook)"
)
_OF_SCRIPTS = {
    Term.COMPUTE: "fewer ranks on a machine: they share its memory, caches and clocks",
    Term.WAIT: "equal work on all ranks before each exchange",
    Term.TRANSFER: _FEWER_BYTES,
    Term.UNDIVIDED: _FEWER_BYTES,
    Term.BUBBLE: "more micro-batches",
    Term.LAUNCH: "a larger batch on each rank, or torch.compile",
    Term.DATA: "less work between two steps: a loader with workers, fewer logs and evaluations",
    Term.MOVE: "pin_memory=True, and .to(device, non_blocking=True)",
    Term.IDLE: "fewer reads of values (.item(), print) and metrics between steps",
    Term.OTHER: "fewer reads of values (.item(), print): each makes the host wait for the device",
}


def of_script(term: Term, ranks: Sequence[RankRecord]) -> str:
    """Return what the owner of a script can change against a term, given what its ranks did."""
    seen = [rank.watched for rank in ranks if rank.watched is not None]
    if term is Term.COMPUTE and any(w.workers or w.threads > w.cores > 0 for w in seen):
        return "fewer threads or workers than cores: ranks share cores, memory and clocks"
    if term is Term.WAIT and any(w.ragged for w in seen):
        return "batches of equal work on all ranks: sort or bucket samples by length"
    if term is Term.WAIT and len({w.evaluations for w in seen}) > 1:
        return "evaluations on all ranks, or on none"
    return _OF_SCRIPTS[term]


#: ``_MORE`` are terms that more work per rank may reduce. ``_RESIDENT`` are terms that may
#: shrink if the data stay on the device.
_MORE = (Term.TRANSFER, Term.UNDIVIDED, Term.LAUNCH, Term.IDLE, Term.OTHER)
_RESIDENT = (Term.MOVE, Term.DATA)
_WHAT = {
    Term.COMPUTE: "the same compute takes longer with more ranks: shared cores, memory or clocks",
    Term.MOVE: "data are copied to or from the device while no kernel runs",
    Term.TRANSFER: "bytes are transferred while no compute runs",
    Term.UNDIVIDED: "ranks communicate while no compute runs",
    Term.BUBBLE: "stages wait because they have no micro-batch to work on",
    Term.DATA: "steps wait for their batch",
    Term.LAUNCH: "issuing operations takes longer than executing them",
    Term.IDLE: "the host works between operations, outside of every named range",
    Term.OTHER: "the device idles although its next operation is queued",
}


class TermAdvice(NamedTuple):
    """A piece of advice against one term of the budget.

    ``share`` is the share of the step that the term's excess over the baseline takes. ``what``
    describes the term. ``gain`` is the largest possible increase of the efficiency if the excess is
    removed, or None if this is unknown. ``remedy`` is the command or the change to try.
    """

    term: str
    share: float
    what: str
    gain: float | None
    remedy: str

    def __str__(self) -> str:
        gain = (
            ""
            if self.gain is None
            else f"; removing it adds at most {self.gain:.3f} to the efficiency"
        )
        return f"{self.term} {self.share:.1%} of the step: {self.what}{gain}; try {self.remedy}"


def advice(
    case: CaseSpec,
    expected: Expected | None,
    losses: Losses,
    budget: Budget,
    settings: Settings,
    launch: LaunchRecord | None = None,
) -> Iterator[TermAdvice]:
    """Yield one piece of advice for each large term, the largest first; none if nothing was lost.

    ``launch`` is the profiled launch; its workers may be slow, and its script says what may help.
    Simulated compute always takes the configured time, so there is no advice on it.
    """
    if losses.step_ns <= losses.ideal_ns:
        return
    if expected is not None and (moved := _moved(case, expected, budget, settings)):
        yield moved
    for term in sorted(losses.excess_ns, key=lambda t: losses.excess_ns[t], reverse=True):
        share = losses.excess_ns[term] / losses.step_ns
        if share < LARGE:
            break
        if term is Term.COMPUTE and case.stand_in:
            continue
        what = _waited_for(budget) if term is Term.WAIT else _WHAT[term]
        fed = None if launch is None else launch.fed
        what += _of_workers(fed) if term is Term.DATA and fed else ""
        if expected is not None:
            remedy = _remedy(term, case, expected, settings)
        else:
            remedy = of_script(term, () if launch is None else launch.ranks)
        yield TermAdvice(WORDS[term], float(share), what, losses.gain(term), remedy)


def _moved(
    case: CaseSpec, expected: Expected, budget: Budget, settings: Settings
) -> TermAdvice | None:
    """Return advice to move blocks of layers between the stages of a pipeline, or None.

    Return None if the longest stage would not become shorter by ``MOVED`` or more.
    """
    if not expected.blocks or len(expected.blocks) != len(budget.ranks):
        return None
    if not budget.total_ns(Term.COMPUTE):
        return None
    busy = [rank.mean_ns(Term.COMPUTE) for rank in budget.ranks]
    costs = [t / n for t, n in zip(busy, expected.blocks, strict=True) for _ in range(n)]
    split = evenly(costs, len(busy))
    ends = list(itertools.accumulate(split, initial=0))
    longest = max(sum(costs[a:b]) for a, b in itertools.pairwise(ends))
    if longest > (1 - MOVED) * max(busy):
        return None
    change = [new - old for new, old in zip(split, expected.blocks, strict=True)]
    giver = change.index(min(change))
    taker = change.index(max(change))
    count = min(-change[giver], change[taker])
    what = "layers" if count > 1 else "layer"
    setting = {f"{case.strategy}.split": ",".join(map(str, split))}
    what_to_do = (
        f"the longest stage computes {max(busy) / 1e6:.1f} ms per step, and the mean"
        f" stage {sum(busy) / len(busy) / 1e6:.1f} ms: move {count} {what} from stage {giver} to"
        f" stage {taker}"
    )
    uneven = (max(busy) - sum(busy) / len(busy)) / budget.step_ns
    return TermAdvice("uneven stages", uneven, what_to_do, None, command(case, settings, setting))


def _remedy(term: Term, case: CaseSpec, expected: Expected, settings: Settings) -> str:
    """Return a complete command that may reduce the term."""
    stated = {Term(t): setting.partition("=") for t, setting in expected.remedies.items()}
    if term in stated or (term is Term.WAIT and Term.BUBBLE in stated):
        name, _, value = stated.get(term) or stated[Term.BUBBLE]
        return command(case, settings, {name: value})
    if term in _RESIDENT and case.data != Data.RESIDENT:
        return command(case.fed_by(Data.RESIDENT), settings, {"data": Data.RESIDENT})
    if term in _MORE:
        strong = case.mode is Mode.STRONG
        batch = expected.global_batch if strong else expected.global_batch // case.world_size
        name = "global_batch" if strong else "micro_batch"
        return command(case, settings, {name: str(2 * batch)})
    if term is Term.WAIT and expected.stages == 1:
        return f"{command(case, settings)} --ablate communication"
    return "scaleproof check"


def starved(case: CaseSpec, budget: Budget, fed: Mapping[str, float] | None) -> str:
    """Return a sentence on steps that wait for data, and on the loader's workers.

    Return an empty string if steps do not wait. A scaling sweep does not show this loss, because a
    slow disk delays a single rank as much as many ranks.
    """
    stall = budget.mean_ns(Term.DATA)
    if stall < LARGE * budget.step_ns:
        return ""
    workers = _of_workers(fed) if fed else ""
    waited = f"{stall / 1e6:.1f} of {budget.step_ns / 1e6:.1f} ms"
    return f"steps wait {waited} for data={case.data}{workers}"


def _of_workers(fed: Mapping[str, float]) -> str:
    """Return text on the workers' time for a batch: the total, and the longer of its two parts."""
    read, decode = fed["read_s"], fed["decode_s"]
    what, of_it = ("reading", read) if read > decode else ("decoding", decode)
    whole = read + decode
    return f" (its workers take {1e3 * whole:.1f} ms a batch, {of_it / whole:.0%} of it for {what})"


def _waited_for(budget: Budget) -> str:
    """Return a sentence about the rank that the others waited for, and its longest term."""
    blame = budget.blame
    if blame is None:
        return "ranks come to a collective at different times"
    if blame.in_turn:
        return "ranks wait for each other in turn: the slowest rank changes between steps"
    all_of_it = blame.share > 0.995
    share = "all waiting" if all_of_it else f"{blame.share:.0%} of the waiting"
    who = f"{share} is for rank {blame.rank}"
    if blame.term is None:
        return f"{who}, which is no slower than the others in total"
    return f"{who}, whose {blame.term} takes {blame.excess_ns / 1e6:.2f} ms longer than the others'"
