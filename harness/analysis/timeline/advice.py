"""For each large term: what it is, what removing it would give back, and how to try it."""

from collections.abc import Iterator

from harness.analysis.timeline.losses import WORDS, Losses
from harness.record import Budget, Expected, Term
from harness.spec import CaseSpec, Device

#: Terms below this share of the step are not worth a sentence.
LARGE = 0.03

_TRY = {
    Term.COMPUTE: "--ablate communication",
    Term.MOVE: "--set data=resident",
    Term.TRANSFER: "--set micro_batch={more}",
    Term.UNDIVIDED: "--set micro_batch={more}",
    Term.WAIT: "--ablate communication",
    Term.DATA: "--set data=resident",
    Term.LAUNCH: "--set micro_batch={more}",
    Term.IDLE: "--set micro_batch={more}",
    Term.OTHER: "--set micro_batch={more}",
}
_WHAT = {
    Term.COMPUTE: "the same compute takes longer with more ranks: shared cores, memory or clocks",
    Term.MOVE: "copies to and from the device, with no kernel running meanwhile",
    Term.TRANSFER: "bytes are transferred while no compute runs",
    Term.UNDIVIDED: "communication while no compute runs",
    Term.BUBBLE: "stages without a micro-batch to work on",
    Term.DATA: "steps wait for their batch",
    Term.LAUNCH: "issuing operations takes longer than executing them",
    Term.IDLE: "the host works between operations, under no named range",
    Term.OTHER: "the device idles although its next operation is queued",
}


def advice(case: CaseSpec, expected: Expected, losses: Losses, budget: Budget) -> Iterator[str]:
    """One line for each large term, the largest first."""
    more = 2 * (expected.global_batch // case.world_size)
    remedies = {t: text.format(more=more) for t, text in _TRY.items()}
    if expected.stages > 1:  # no stage can go without its neighbours
        remedies = {t: text for t, text in remedies.items() if "ablate" not in text}
    remedies |= {Term(t): f"--set {setting}" for t, setting in expected.remedies.items()}
    terms = sorted(losses.excess_ns, key=lambda t: losses.excess_ns[t], reverse=True)
    for term in terms:
        share = losses.excess_ns[term] / losses.step_ns
        if share < LARGE:
            break
        what = _waited_for(budget) if term is Term.WAIT else _WHAT[term]
        remedy = remedies.get(term) or remedies.get(Term.BUBBLE)
        yield (
            f"{WORDS[term]} {float(share):.1%} of the step: {what};"
            f" without it at most +{losses.gain(term):.3f} efficiency"
            + (f"; try {_command(case)} {remedy}" if remedy else "")
        )


def _waited_for(budget: Budget) -> str:
    """The rank that the others waited for, and what it was at."""
    b = budget.blame
    if b is None:
        return "ranks come to a collective at different times"
    who = f"{b.share:.0%} of the waiting is for rank {b.rank}"
    if b.term is None:
        return f"{who}, which is no slower than the others in total"
    return f"{who}, whose {b.term} is {b.excess_ns / 1e6:.2f} ms over the others'"


def _command(case: CaseSpec) -> str:
    unit = "--gpus" if case.device is Device.CUDA else "--cpus"
    return f"scaleproof run {case.family} {unit} {case.world_size}"
