"""Format the prediction for one size, as a block of a terminal and as a sentence of a report."""

from harness.base.formatting import si
from harness.cases.metrics import IMPLAUSIBLE
from harness.features.foresight.advise import Advice
from harness.features.foresight.invert import Knob
from harness.features.foresight.learned import Regime
from harness.features.foresight.outlook import Outlook
from harness.features.foresight.own.ladders import planned
from harness.features.foresight.prediction import Predicted
from harness.features.foresight.published.table import Refused
from harness.features.foresight.terms import ForeseenTerm
from harness.interface.report import text
from harness.record import RunRecord

#: The padding of shards is reported if the ratio of padded to unpadded bytes exceeds this.
PADDED = 1.05


def lines(outlook: Outlook, width: int) -> list[str]:
    """Return the terminal lines of the prediction for one size."""
    rule = text.rule(
        f"{title(outlook)[: width - 24]}, {outlook.predicted.shape.ranks:,} ranks", width
    )
    wrapped = (text.wrap(f" {label:<13} {fact}", width, 15) for label, fact in facts(outlook))
    return ["", rule, *(line for of_fact in wrapped for line in of_fact)]


def title(outlook: Outlook) -> str:
    """Return the name of the table, with its model if the name lacks it."""
    model = outlook.predicted.shape.model.name
    return outlook.table if model in outlook.table else f"{outlook.table} {model}"


def facts(outlook: Outlook) -> list[tuple[str, str]]:
    """Return the labels and sentences of a prediction.

    If the size does not fit into memory, only that is reported.
    """
    seen = outlook.predicted
    if not outlook.fits:
        message = f"a rank needs {memory(outlook)}: no efficiency is predicted"
        return [("DOES NOT FIT", message)]
    low_s, high_s = step_between(outlook)
    span = f"[{seen.low:.2f}, {seen.high:.2f}] (80 %){doubt(seen)}"
    step_span = f" [{si(low_s, 's')}, {si(high_s, 's')}]"
    if not outlook.bounded:
        span = "(no interval: the measured sizes are too few and too small)"
    rows = [
        ("efficiency", f"{seen.efficiency:.2f} {span}{relative(outlook)}"),
        *([("measured", measured(outlook))] if len(outlook.measured) > 1 else []),
        ("step", si(seen.step_s, "s") + (step_span if outlook.bounded else "")),
        ("limited by", limits(seen)),
        *([(f"to hold {outlook.hold:.2f}", holds(outlook))] if outlook.held else []),
        ("a rank", memory(outlook)),
        ("cost", cost(outlook)),
    ]
    if outlook.padding > PADDED:
        rows.append(("padding", f"shards are padded to {outlook.padding:.3g} times their bytes"))
    if outlook.knee is not None:
        rows.append(
            ("changes", f"from {outlook.knee.ranks:,} ranks on, {outlook.knee.term} costs most")
        )
    laws = ", ".join(f"{law} {value:.2f}" for law, value in seen.baselines.items())
    if outlook.advice is not None:
        if outlook.advice.knee is not None:
            rows.append(("to see a knee", knee_size(outlook.advice)))
        rows.append(("measure next", next_size(outlook.advice, seen.efficiency)))
    return [*rows, ("laws in N", laws)]


def relative(outlook: Outlook) -> str:
    """Return the size to which the efficiency is relative, which is the smallest measured one."""
    if not outlook.measured:
        return ""
    ranks = min(outlook.measured)
    return f", relative to the smallest measured size, {ranks:,} rank{'s' * (ranks > 1)}"


def measured(outlook: Outlook) -> str:
    """Return the efficiency of the largest measured size, and whether the prediction is higher."""
    largest = max(outlook.measured)
    value = outlook.measured[largest]
    sentence = f"{value:.2f} at {largest:,} ranks"
    if outlook.predicted.efficiency <= value:
        return sentence
    return f"{sentence}; the prediction is higher, because it counts a part of that loss as noise"


def doubt(seen: Predicted) -> str:
    """Return a remark if the efficiency is implausible on any hardware, or an empty string."""
    if seen.efficiency <= IMPLAUSIBLE:
        return ""
    return ", implausible: ranks of its scaling sweep become faster as their number grows"


def step_between(outlook: Outlook) -> tuple[float, float]:
    """Return the 80 % interval of the step time in seconds."""
    seen = outlook.predicted
    whole = seen.step_s * seen.efficiency
    return whole / seen.high, whole / seen.low


def memory(outlook: Outlook) -> str:
    """Return the memory of a rank, such as ``6.1 GB of 80 GB``."""
    if outlook.memory_bytes is None:
        return "memory n/a"
    of = f" of {si(outlook.room_bytes, 'B')}" if outlook.room_bytes else ""
    return f"{si(float(outlook.memory_bytes), 'B')}{of}"


def cost(outlook: Outlook) -> str:
    """Return the cost of a billion tokens or samples in device-hours."""
    unit = "tokens" if outlook.predicted.shape.seq > 1 else "samples"
    return f"{outlook.device_hours:,.3g} device-hours for 1e9 {unit}"


def next_size(next_: Advice, efficiency: float) -> str:
    """Return the size to measure next, and by how much it narrows the interval."""
    sd = 100 * efficiency * 1.28
    batch = f"micro-batch {next_.shape.micro_batch:g} x {next_.shape.micros}"
    return (
        f"{next_.shape.ranks} ranks, {batch}: ±{sd * next_.before_sd:.1f} becomes"
        f" ±{sd * next_.after_sd:.1f} points (measuring twice the largest"
        f" size: ±{sd * next_.doubling_sd:.1f})"
    )


def knee_size(advice: Advice) -> str:
    """Return the size that would show a knee which no term describes, and the step time that shows
    it.
    """
    knee, longest_s = advice.knee, advice.knee_s
    assert knee is not None and longest_s is not None
    batch = f"micro-batch {knee.micro_batch:g} x {knee.micros}"
    return (
        f"{knee.ranks} ranks, {batch}: a step above {si(longest_s, 's')} shows a knee at or below"
        " this size, because little compute hides the exchange"
    )


def recorded(run: RunRecord) -> list[str]:
    """Return a sentence for each prediction that the recipes of a run list; they are
    never judged.
    """
    shown = []
    for target, outlooks in planned(run):
        if isinstance(outlooks, Refused):
            shown.append(f"not predicted  {target.case.id}: {outlooks.why}")
        else:
            shown += [_recorded(target.case.id, outlook) for outlook in outlooks]
    return shown


def _recorded(target: str, outlook: Outlook) -> str:
    seen = outlook.predicted
    if not outlook.fits:
        return f"RECORDED  {target} does not fit: a rank needs {memory(outlook)}"
    mark = ", outside the calibrated regime" if seen.regime is Regime.UNSEEN else ""
    return (
        f"RECORDED  {target} is predicted: efficiency {seen.efficiency:.3f}"
        f" [{seen.low:.3f}, {seen.high:.3f}] (80 %){doubt(seen)}, limited by {seen.limiter}{mark};"
        f" {memory(outlook)} per rank"
    )


def limits(seen: Predicted) -> str:
    if seen.regime is Regime.CURVE:
        return (
            "not known: predicted from the number of ranks alone, as other trainings have scaled,"
            " because the bytes that ranks exchange are not stated (params), or one rank alone was"
            " measured"
        )
    if seen.limiter is ForeseenTerm.COMPUTE:
        return "compute; no overhead takes 2 % of the step"
    worst = sorted(seen.lost.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{term} {value:.3f}" for term, value in worst[:3] if value > 0.001)
    unseen = ", which no calibrated size showed" if seen.regime is Regime.UNSEEN else ""
    return f"{seen.limiter}{unseen}; of {1 - seen.efficiency:.3f} lost: {parts or 'nothing'}"


def holds(outlook: Outlook) -> str:
    ways = []
    for held in outlook.held:
        if held.times is None:
            ways.append(f"not reachable by {held.knob} (at most {held.best:.2f})")
        elif held.knob is Knob.SHARDS:
            ways.append(f"{held.knob} ({held.best:.2f})")
        elif held.times == 1.0:
            if outlook.predicted.efficiency >= outlook.hold:
                return "as it is"
            return "no setting is known: what is lost has no explanation that a setting changes"
        else:
            ways.append(f"{held.knob} x{held.times:.2g}")
    return "; or ".join(ways)
