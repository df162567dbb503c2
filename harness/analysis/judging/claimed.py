"""What only the user says, or one witness alone: a PASS that rests on it becomes RECORDED."""

from collections.abc import Iterator, Sequence

from harness.analysis.judging import planned, work
from harness.analysis.judging.evidence import Evidence
from harness.analysis.judging.obstacles import too_large_for_one
from harness.analysis.samples import references
from harness.cases import metrics
from harness.cases.metrics import Factor
from harness.record import Described

#: Factors that a description states.
STATED = {Factor.TOKENS, Factor.MODEL_FLOPS, Factor.HARDWARE_FLOPS}

#: The mean loss of the last steps scatters by some hundredths around the entropy of the data.
BELOW_NATS = 0.1


def claimed(evidence: Evidence) -> str:
    """The first thing that the metric rests on and nothing vouches for; empty if there is none."""
    return next(_claims(evidence), "")


def _claims(evidence: Evidence) -> Iterator[str]:
    if reason := planned.misnamed(evidence.plan, evidence.contrast):
        yield reason
    if evidence.subject.script:
        yield from _of_script(evidence)
    described = evidence.run.described[evidence.subject.hash]
    if metrics.metric(evidence.contrast.metric).of_schedule and described.own_ideal:
        yield "the ideal efficiency is its own files' claim"
    if described.excuses:
        claims = ", ".join(described.excuses)
        yield f"the strategy's own file excuses it from the comparison of losses ({claims})"
    if described.theirs:
        yield from _of_files(evidence, described)
        yield from _of_floor(evidence, described)


def _of_script(evidence: Evidence) -> Iterator[str]:
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    watched = [launch.ranks[0].watched for launch in launches if launch.usable and launch.ranks]
    if any(w is not None and not w.even for w in watched):
        yield "steps do not exchange equally many bytes: what a step is, has one witness"
    if any(w is not None and len(w.roots) != 1 for w in watched):
        yield "its samples are as declared, not counted"


def _of_files(evidence: Evidence, described: Described) -> Iterator[str]:
    """What a user's file may have said of itself, or of a model that is not its own."""
    run = evidence.run
    case = evidence.subject
    trained = references.launch_of(run.references, run.described, case.hash)
    if trained is not None and trained.cause is not None and trained.cause.kind == "memory":
        yield "its reference ended for want of memory: none of its losses were compared"
    if set(described.theirs) == {"models"}:
        return  # a file speaks for its own model; the record has its digest
    if too_large_for_one(described, case, run.machine):
        yield "its own file says that no device holds the reference: two losses were compared"
    yield from _of_model(evidence, described)
    if "strategies" in described.theirs and (reason := work.excess(evidence, if_cut=True)):
        yield f"{reason}, and only its own file says that ranks hold parts"


def _of_model(evidence: Evidence, described: Described) -> Iterator[str]:
    """Facts of the model against those that were stated where the files were not imported."""
    witnesses = list(_witnesses(evidence))
    if any(_facts(witness) != _facts(described) for witness in witnesses):
        yield "its own file describes another model than its baseline's"
    needed = [_reference_bytes(witness) for witness in witnesses]
    if needed and _reference_bytes(described) > max(needed):
        yield "its own file's description asks for more memory than its baseline's"
    metric = metrics.metric(evidence.contrast.metric)
    stated = STATED & {*metric.times, *metric.over} or metric.read.startswith("reached.")
    if stated and not witnesses:
        yield "what a sample is was stated where its own file was imported"


def _of_floor(evidence: Evidence, described: Described) -> Iterator[str]:
    """No training ends below the entropy of its data: a target above that means something only
    where the entropy is as stated.
    """
    floor = described.facts.loss_floor if described.facts else None
    if floor is None or not metrics.metric(evidence.contrast.metric).read.startswith("reached."):
        return
    launches = evidence.timed_of(arm.name for arm in evidence.plan.arms)
    losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
    if losses and min(losses) < floor - BELOW_NATS:
        yield f"its model states a least loss of {floor:.3g}, and it ends at {min(losses):.3g}"


def _witnesses(evidence: Evidence) -> Iterator[Described]:
    """Descriptions of the same model at the same size, by its own file at most."""
    case = evidence.subject
    for arm in evidence.plan.arms:
        other = evidence.run.described.get(arm.case.hash)
        alike = (arm.case.model, arm.case.size, arm.case.seq_len, arm.case.precision) == (
            case.model,
            case.size,
            case.seq_len,
            case.precision,
        )
        if alike and other is not None and set(other.theirs) <= {"models"}:
            yield other


def _facts(described: Described) -> Sequence[object]:
    facts = described.facts
    if facts is None:
        return ()
    return (
        facts.num_params,
        facts.flops_per_sample,
        facts.tokens_per_sample,
        facts.loss_floor,
        facts.step_s,
    )


def _reference_bytes(described: Described) -> int:
    return 0 if described.reference is None else described.reference.memory_bytes
