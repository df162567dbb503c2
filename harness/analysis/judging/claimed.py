"""Claims of a user's files, or of one witness alone: a PASS that rests on one becomes RECORDED."""

from collections.abc import Iterator

from harness.analysis.judging import planned, work
from harness.analysis.judging.evidence import ContrastData
from harness.analysis.samples import references
from harness.analysis.samples.figures import SMOOTH
from harness.cases import metrics
from harness.record import Described

#: The mean loss of the last steps scatters by some hundredths around the entropy of the data.
BELOW_NATS = 0.1


def claimed(evidence: ContrastData) -> str:
    """The first thing that the metric rests on and nothing vouches for; empty if there is none."""
    return next(_claims(evidence), "")


def _claims(evidence: ContrastData) -> Iterator[str]:
    if reason := planned.misnamed(evidence.plan, evidence.contrast):
        yield reason
    if evidence.subject.script:
        yield from _of_script(evidence)
    described = evidence.run.described[evidence.subject.hash]
    if metrics.metric(evidence.contrast.metric).of_schedule and described.own_ideal:
        yield "the ideal efficiency is its own files' claim"
    if described.excuses:
        claims = ", ".join(described.excuses)
        yield f"its own files excuse it from the comparison with a reference ({claims})"
    if described.theirs:
        yield from _of_files(evidence, described)
        yield from _of_floor(evidence, described)


def _of_script(evidence: ContrastData) -> Iterator[str]:
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    watched = [launch.ranks[0].watched for launch in launches if launch.usable and launch.ranks]
    if any(w is not None and not w.even for w in watched):
        yield "steps do not exchange equally many bytes: what a step is, has one witness"
    if any(w is not None and len(w.roots) != 1 for w in watched):
        yield "its samples are as declared, not counted"


def _of_files(evidence: ContrastData, described: Described) -> Iterator[str]:
    """Says what a user's file may have stated of itself, or of a model that is not its own."""
    run = evidence.run
    case = evidence.subject
    trained = references.launch_of(run.references, run.described, case.hash)
    if trained is not None and trained.cause is not None and trained.cause.kind == "memory":
        yield "its reference ended for want of memory: none of its losses were compared"
    if metrics.metric(evidence.contrast.metric).read == "peak_bytes" and _brings_files(evidence):
        yield "how much its baseline holds is up to its own files"
    if "strategies" in described.theirs and (reason := work.excess(evidence, if_cut=True)):
        yield f"{reason}, and only its own file says that ranks hold parts"


def _brings_files(evidence: ContrastData) -> bool:
    """Whether a baseline trains with files of the user's that are told the world's size."""
    described = evidence.run.described
    baseline = [evidence.plan.arm(name).case.hash for name in evidence.contrast.baseline]
    return any(
        set(described[hash_].theirs) - {"models"} for hash_ in baseline if hash_ in described
    )


def _of_floor(evidence: ContrastData, described: Described) -> Iterator[str]:
    """No training ends below the entropy of its data, and a target that is met before anything was
    trained is none.
    """
    floor = described.facts.loss_floor if described.facts else None
    if floor is None or not metrics.metric(evidence.contrast.metric).read.startswith("reached."):
        return
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    steps = [launch.reached.steps for launch in launches if launch.reached is not None]
    if steps and max(steps) <= SMOOTH:
        yield "its target was met before anything was trained"
    losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
    if losses and min(losses) < floor - BELOW_NATS:
        yield f"its model states a least loss of {floor:.3g}, and it ends at {min(losses):.3g}"
