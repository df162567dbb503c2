"""Blockers: reasons why a contrast is not judged by its values, such as incorrect training.

A contrast is a ratio of a metric between two arms. An arm is a case in its role in a comparison.
A gate is the launch that checks a case's correctness.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.analysis.judging.contrast_data import ContrastData
from harness.analysis.judging.question import Caveat, blocker
from harness.analysis.samples import references
from harness.analysis.script import same_training
from harness.base.documents import fields_of
from harness.cases import (
    Arm,
    CaseSpec,
    Contrast,
    Device,
    Mode,
    Plan,
    Precision,
    Role,
    metrics,
    recipes,
)
from harness.host.machine import Machine
from harness.record import (
    Described,
    LaunchRecord,
    LaunchStatus,
    Reason,
    RunRecord,
    Status,
)
from harness.record.launch import NOT_COMPARABLE

#: Largest relative difference of the first step's gradient norm between world sizes of a strong
#: scaling sweep, by precision.
NORM_LIMIT = {Precision.FP32: 1e-5}
#: Names in ``RankRecord.sources`` that are versions of software. The other names are files.
#: Versions may differ between the setups of a comparison.
VERSIONS = ("scaleproof", "torch", "nccl")
#: Torch's error for FP8 products on a GPU older than sm_89.
_NO_FP8 = re.compile(r"scaled_mm.* only supported on")
#: Largest relative difference of the FLOPs of two steps of the same model on the same samples. Only
#: a model whose weights decide what it computes exceeds it.
PRODUCTS = 0.02
#: The limit in place of ``NORM_LIMIT`` for precisions that round to fewer bits than fp32.
ROUNDED_LIMIT = 2e-2


def find_blocker(evidence: ContrastData) -> Caveat | None:
    """Return the first reason why this contrast cannot be judged, or None."""
    for look in (
        _not_launched, _not_smallest, _edited, _gated, _mismatched, _unreferenced, _launched,
        _computed_otherwise,
    ):  # fmt: skip
        if (reason := look(evidence)) is not None:
            return reason
    return None


def _not_launched(evidence: ContrastData) -> Caveat | None:
    """Return a blocker for a case that was refused, failed before its launch, or does not fit."""
    for arm in evidence.arms:
        name = arm.case.id
        described = evidence.run.described.get(arm.case.hash)
        if described is None:
            return unmeasured(evidence.run, evidence.plan, f"{name} was not measured")
        if described.error:
            return blocker(Status.ERROR, Reason.LAUNCH_FAILED, f"{name}: {described.error}")
        if described.not_comparable:
            reason = f"{name}: {described.not_comparable}"
            return blocker(Status.NOT_COMPARABLE, Reason.NOT_COMPARABLE, reason)
        if described.unsupported:
            return blocker(Status.SKIP, Reason.UNSUPPORTED, f"{name}: {described.unsupported}")
        if not fits(described, arm.case, evidence.run.machine):
            return blocker(Status.SKIP, Reason.DOES_NOT_FIT, f"{name} does not fit on this machine")
    return None


def _not_smallest(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if the baseline must be the smallest case that fits, but is another one."""
    if evidence.contrast.against != "smallest_fit":
        return None
    smallest = smallest_fit(evidence.run, evidence.plan)
    if evidence.contrast.baseline[0] == smallest:
        return None
    return blocker(Status.SKIP, Reason.UNSUPPORTED, f"the smallest case that fits is {smallest}")


def _edited(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if a source file or version differs between launches of a contrast.

    Versions are compared only between launches of the same setup. If a setup is a separate checkout
    of the code, its files are also compared only with those of launches of the same setup.
    """
    known: dict[tuple[str, str], tuple[str, str]] = {}
    setups = {arm.case.hash: arm.case.setup for arm in evidence.arms}
    run = evidence.run
    versions = dict(run.settings.checkouts)
    checked = [run.gates[case] for case in setups if case in run.gates]
    trained = (references.launch_of(run.references, run.described, case) for case in setups)
    for launch in [*checked, *filter(None, trained), *evidence.all_launches]:
        setup = setups.get(launch.case, "")
        for name, digest in (
            (n, value) for rank in launch.ranks for n, value in (rank.sources or {}).items()
        ):
            of = setup if name in VERSIONS or setup in versions else ""
            first, before = known.setdefault((of, name), (launch.launch, digest))
            if before != digest:
                reason = f"{name} was changed between {first} and {launch.launch}: measure again"
                detail = f"{reason} ({before}, then {digest})"
                return blocker(Status.ERROR, Reason.WRONG_WORLD, detail)
    return None


def _gated(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if the correctness check of an arm failed or is missing."""
    for arm in evidence.arms:
        gate = evidence.run.gates.get(arm.case.hash)
        if arm.role is Role.CONTROL:
            return _control(gate)
        if arm.role is Role.ABLATION or arm.case.script:
            # Ablations train incorrectly on purpose. Scripts are checked in each of their launches.
            continue
        if gate is None:
            return _ungated(evidence.run, evidence.plan, arm.case)
        if (impossible := not_here(arm.case, gate)) is not None:
            return impossible
        if (failure := gate_failure(gate)) is not None:
            reason = Reason.LAUNCH_FAILED if gate.cause else Reason.INCORRECT
            if failure.startswith("bytes."):
                reason = Reason.WRONG_BYTES
            whose = "" if arm.name == evidence.contrast.subject else f"{arm.case.id}: "
            return blocker(Status.ERROR, reason, f"{whose}{failure}")
    return None


def _ungated(run: RunRecord, plan: Plan, case: CaseSpec) -> Caveat:
    """Return a blocker for a case whose correctness check is missing."""
    if (lower := _stopped_at(run, plan, case, run.gates)) is not None:
        of_model = not_here(lower, run.gates[lower.hash])
        if of_model is not None and of_model.status is Status.NOT_COMPARABLE:
            return of_model
        reason = f"{case.id} was not launched, because the correctness check of {lower.id} failed"
        return blocker(Status.SKIP, Reason.CLIMB_STOPPED, reason)
    return unmeasured(run, plan, f"the correctness of {case.id} was never checked")


def _computed_otherwise(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if a user's model ran other matrix products than when it was checked.

    The correctness check then examined another computation than the one that was timed.
    """
    for launch in evidence.all_launches:
        gate = evidence.run.gates.get(launch.case)
        checked = {rank.rank: rank.probe.flops for rank in gate.ranks if rank.probe} if gate else {}
        for rank in launch.ranks:
            before = checked.get(rank.rank)
            if rank.probe is None or not before:
                continue
            ratio = rank.probe.flops / before
            if abs(ratio - 1) > PRODUCTS:
                reason = (
                    f"a step after the window of {launch.launch} ran {ratio:.2f}x of the matrix"
                    " products of a step of the correctness check (16-bit products count half):"
                    " the model computes something else later in a training, and its speed is not"
                    " that of the checked computation"
                )
                return blocker(Status.NOT_COMPARABLE, Reason.NOT_COMPARABLE, reason)
    return None


def _mismatched(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if the arms do not run the same training."""
    difference = _unlike(evidence) or _norms(evidence)
    return None if difference is None else blocker(Status.ERROR, Reason.INCORRECT, difference)


def _unreferenced(evidence: ContrastData) -> Caveat | None:
    """Return a blocker if the reference training of an arm failed or did not pass its checks.

    A reference that ran out of memory does not block the contrast. In this case, the losses of the
    arm are not compared with a reference.
    """
    for arm in evidence.arms:
        run = evidence.run
        compared = references.launch_of(run.references, run.described, arm.case.hash)
        if compared is None:
            continue
        if (check := _failed(compared)) is not None:
            return blocker(Status.ERROR, Reason.INCORRECT, f"{arm.case.id}: {check}")
        if compared.status is not LaunchStatus.FAILED:
            continue
        if not_here(arm.case, compared) is None:
            reason = f"{arm.case.id}: the reference could not be trained: {blame(compared)}"
            return blocker(Status.ERROR, Reason.LAUNCH_FAILED, reason)
    return None


def _launched(evidence: ContrastData) -> Caveat | None:
    """Return the blocker for the first unusable launch of the contrast, or None."""
    reasons = (_of_launch(evidence.run, evidence.plan, launch) for launch in evidence.all_launches)
    return next((why for why in reasons if why is not None), None)


def _unlike(evidence: ContrastData) -> str | None:
    """Return a difference in training between launches of a user's script, as text, or None."""
    if not evidence.subject.script:
        return None
    launches = [x for x in evidence.all_launches if x.usable and x.ranks]
    subject, baseline = evidence.contrast.subject, evidence.contrast.baseline
    of_subject = [launch for launch in launches if launch.arm == subject]
    of_baseline = [launch for launch in launches if launch.arm in baseline]
    versions = dict(evidence.run.settings.checkouts)
    edited = evidence.subject.setup in versions  # the contrast compares two versions of the script
    return same_training.unlike(evidence.subject, of_subject, of_baseline, edited=edited)


def _of_launch(run: RunRecord, plan: Plan, launch: LaunchRecord) -> Caveat | None:
    """Return why the result of a launch cannot be used, or None.

    Return None for a discarded launch, because its result is not used.
    """
    case = next((arm.case for arm in plan.arms if arm.case.hash == launch.case), None)
    if launch.discarded:
        return None
    if launch.status is LaunchStatus.FAILED:
        impossible = not_here(case, launch) if case is not None else None
        return impossible or blocker(Status.ERROR, Reason.LAUNCH_FAILED, blame(launch))
    if launch.stood_still:
        reason = f"noisy host: {launch.launch}: {launch.wrong[0]}"
        return blocker(Status.INCONCLUSIVE, Reason.NOISY_HOST, reason)
    if launch.wrong:
        return blocker(Status.ERROR, Reason.WRONG_WORLD, f"{launch.launch}: {launch.wrong[0]}")
    if case is not None and (unseen := _unseen(run, plan, case, launch)) is not None:
        return blocker(Status.ERROR, Reason.NOT_MEASURED, unseen)
    return None


def not_here(case: CaseSpec, launch: LaunchRecord) -> Caveat | None:
    """Return a blocker if a launch ended although the training may be correct, else None.

    The model may have a property that no check supports (NOT COMPARABLE). The case may need more
    memory than its closed form predicts, or the GPU may be too old for FP8 matrix products (SKIP).
    """
    if launch.cause is None:
        return None
    if launch.cause.kind == NOT_COMPARABLE:
        reason = f"{case.id}: {launch.cause.message}"
        return blocker(Status.NOT_COMPARABLE, Reason.NOT_COMPARABLE, reason)
    if launch.cause.kind == "memory":
        reason = f"{case.id} does not fit: {blame(launch)}"
        return blocker(Status.SKIP, Reason.DOES_NOT_FIT, reason)
    if case.precision is Precision.FP8 and _NO_FP8.search(launch.cause.message):
        reason = f"{case.id}: this GPU does not support FP8 matrix products: {blame(launch)}"
        return blocker(Status.SKIP, Reason.UNSUPPORTED, reason)
    return None


def _unseen(run: RunRecord, plan: Plan, case: CaseSpec, launch: LaunchRecord) -> str | None:
    """Return a sentence if too few losses of a launch were compared with its reference, or None.

    Losses do not have to be compared if there is no reference training or if it ran out of memory.
    """
    trained = references.launch_of(run.references, run.described, launch.case)
    steps = run.window(plan, launch).steps
    if too_large_for_one(run.described[launch.case], case, run.machine):
        steps = min(steps, references.STREAMED_STEPS)
    ablated = plan.arm(launch.arm).role is Role.ABLATION if launch.plan == plan.hash else False
    checked = launch.asked in references.COMPARED and not (ablated or launch.behind)
    if trained is None or not checked or launch.compared >= steps:
        return None
    if trained.cause is not None and trained.cause.kind == "memory":
        return None  # the report states how many launches were not compared for this reason
    return f"{launch.launch}: {launch.compared} of {steps} losses were compared with the reference"


def fits(described: Described, case: CaseSpec, machine: Machine) -> bool:
    """Return whether the machine has the devices and the memory that a case needs.

    The needed memory is predicted by the closed form of the case. It is compared with the memory of
    a GPU, or with the memory of the host for ranks on CPUs.
    """
    if case.script:
        return True
    if described.expected is None:
        return False
    if case.device is Device.CUDA and case.devices_per_rank > 1:
        if max(case.nodes) * case.devices_per_rank > machine.num_gpus:
            return False
    return room(described.expected.memory_bytes, max(case.nodes), case.device, machine)


def too_large_for_one(described: Described, case: CaseSpec, machine: Machine) -> bool:
    """Return whether the reference training of a case, with one rank per shard, does not fit."""
    wanted = described.reference
    if wanted is None:
        return False
    ranks = max(case.nodes) if wanted.shards > 1 else 1
    return not room(wanted.memory_bytes, ranks, case.device, machine)


#: Bytes of GPU memory that a process uses before it trains: CUDA's context and kernels, and NCCL's
#: buffers.
CONTEXT_BYTES = 1_500_000_000


def room(memory_bytes: int, ranks: int, device: Device, machine: Machine) -> bool:
    """Return whether a node has ``memory_bytes`` of memory for each of ``ranks`` ranks."""
    if device is Device.CPU:
        return memory_bytes * ranks <= 0.9 * machine.memory_gib * 2**30
    if machine.gpu_memory_gib is None:
        return True
    return memory_bytes + CONTEXT_BYTES <= 0.95 * machine.gpu_memory_gib * 2**30


def unmeasured(run: RunRecord, plan: Plan, what: str) -> Caveat:
    """Return the blocker for something that was not measured.

    It is INCONCLUSIVE if the run was stopped or ran out of time. In a complete run, it has the
    status and the reason of a launch of the plan that cannot be used. If there is no such launch,
    it is an ERROR, because a complete run measures everything.
    """
    if plan.hash in run.out_of_time:
        return blocker(Status.INCONCLUSIVE, Reason.OUT_OF_TIME, what)
    checked = {launch.arm for launch in run.by_plan.get(plan.hash, ()) if launch.usable}
    if plan.checks_only and checked == {arm.name for arm in plan.arms}:
        return blocker(Status.RECORDED, Reason.CHECKED, "only its checks were made")
    if not run.complete:
        return blocker(Status.INCONCLUSIVE, Reason.INTERRUPTED, what)
    blocked = (_of_launch(run, plan, launch) for launch in run.by_plan.get(plan.hash, ()))
    for caveat in (caveat for caveat in blocked if caveat is not None):
        return replace(caveat, sentence=f"{what}, because {caveat.sentence}")
    return blocker(Status.ERROR, Reason.NOT_MEASURED, what)


def _stopped_at(
    run: RunRecord, plan: Plan, case: CaseSpec, checked: Mapping[str, LaunchRecord]
) -> CaseSpec | None:
    """Return a smaller case whose correctness check failed, or None.

    Correctness checks start at the smallest world size and stop at the first failure. A smaller
    case has the same strategy and fewer ranks.
    """
    for arm in plan.arms:
        gate = checked.get(arm.case.hash)
        below = arm.case.world_size < case.world_size and arm.case.strategy == case.strategy
        if below and gate is not None and gate_failure(gate) is not None:
            return arm.case
    return None


def smallest_fit(run: RunRecord, plan: Plan) -> str:
    """Return the name of the smallest subject arm that fits, or an empty string if none fits."""
    fitting = [
        arm
        for arm in plan.arms
        if arm.role is Role.SUBJECT
        and (d := run.described.get(arm.case.hash)) is not None
        and not d.unsupported
        and not d.not_comparable
        and fits(d, arm.case, run.machine)
    ]
    return min(fitting, key=lambda a: a.case.world_size).name if fitting else ""


def gate_failure(gate: LaunchRecord) -> str | None:
    """Return the failed check of a gate as a sentence, or None if all passed on every rank.

    If several failed, return the one that comes first in training, because it can have caused the
    later failures.
    """
    if gate.status is not LaunchStatus.OK:
        if gate.cause is not None and gate.cause.kind == NOT_COMPARABLE:
            return gate.cause.message
        return f"correctness gate: {blame(gate)}"
    if (check := _failed(gate)) is not None:
        return check
    if not gate.ranks or not all(rank.checks for rank in gate.ranks):
        return "correctness gate: nothing was checked"
    return None


def _failed(launch: LaunchRecord) -> str | None:
    """Return a sentence on the first failed check of a launch, or None if all passed."""
    failed = [(rank.rank, check) for rank in launch.ranks for check in rank.checks if not check.ok]
    if not failed:
        return None
    order: dict[str, int] = {}
    for rank in launch.ranks:
        for place, check in enumerate(rank.checks):
            order[check.name] = max(place, order.get(check.name, 0))
    number, check = min(failed, key=lambda f: (order[f[1].name], f[0]))
    figures = "" if check.value is None else f" {check.value:.6g}"
    if check.limit is not None:
        figures += f", {'at least' if check.at_least else 'allowed'} {check.limit:.6g}"
    detail = f" ({check.detail})" if check.detail else ""
    return f"{check.name} on rank {number}:{figures}{detail}"


#: Text for each phase in which a launch can end.
_WHEN = {
    "start": "during startup", "group": "during rendezvous", "build": "before the first step",
    "gate": "in the gate", "warmup": "in warm-up", "steady": "in the timed window",
    "finish": "at its end",
}  # fmt: skip


def blame(launch: LaunchRecord) -> str:
    """Return a sentence on the failure of a launch.

    It names the rank or node that ended the launch, its message, the phase and the step. It also
    says whether another rank may be the cause, which ranks ended because of it, and where the log
    file is.
    """
    cause = launch.cause
    if cause is None:
        return f"{launch.launch} did not finish"
    steps = f", step {cause.step}" if cause.phase in ("warmup", "steady") else ""
    facts = [f"{_WHEN.get(cause.phase, cause.phase)}{steps}"] if cause.phase else []
    of_node = cause.kind == "node"
    facts += [f"node {cause.node}"] if cause.node and not of_node else []
    facts += [] if cause.sure else [f"another {'node' if of_node else 'rank'} may be the cause"]
    if cause.victims:
        several = "s" if len(cause.victims) > 1 else ""
        facts.append(
            f"rank{several} {', '.join(map(str, cause.victims))} ended with it"
            if len(cause.victims) <= 8
            else f"{len(cause.victims)} ranks ended with it"
        )
    facts.append(f"log launches/{launch.launch}/rank{cause.rank}.log")
    who = "" if of_node else f"rank {cause.rank}: "
    return f"{who}{cause.message} ({'; '.join(facts)})"


def _control(gate: LaunchRecord | None) -> Caveat:
    """Return the conclusion on a control, a case that trains incorrectly on purpose.

    It is a PASS only if the byte checks detect the incorrect training. A crash or another failed
    check does not count.
    """
    if gate is None or gate.status is not LaunchStatus.OK:
        return blocker(Status.ERROR, Reason.NOT_MEASURED, "the correctness gate did not finish")
    wrong = [
        check for check in gate.ranks[0].checks if check.name.startswith("bytes.") and not check.ok
    ]
    if not wrong:
        return blocker(
            Status.FAIL,
            Reason.NOT_CAUGHT,
            "the byte checks did not detect a case that trains incorrectly on purpose",
        )
    sent = [c for c in wrong if c.name == "bytes.sent"]
    return blocker(Status.PASS, Reason.CAUGHT, f"caught: {(sent or wrong)[0].detail}")


def _norms(evidence: ContrastData) -> str | None:
    """Return a sentence if the first step's gradient norm differs between world sizes, or None.

    In strong scaling the global batch is fixed, so the norm must not depend on the world size.
    """
    first, *baseline = evidence.arms
    gates = evidence.run.gates
    subject = first.case
    ablation = first.role is Role.ABLATION
    if subject.mode is not Mode.STRONG or subject.compressor or subject.script or ablation:
        return None
    norm = gates[subject.hash].ranks[0].grad_norm
    for arm in baseline:
        case = arm.case
        other = gates[case.hash].ranks[0].grad_norm
        if norm is None or other is None or case.global_batch != subject.global_batch:
            continue
        if (case.model, case.size) != (subject.model, subject.size):
            continue
        error = abs(norm - other) / max(other, 1e-300)
        if error > NORM_LIMIT.get(subject.precision, ROUNDED_LIMIT):
            return (
                f"step-1 gradient norm {norm:.8g}, but {other:.8g} on {arm.name}: relative"
                f" difference {error:.1e}"
            )
    return None


def misnamed(plan: Plan, contrast: Contrast) -> str:
    """Return the first violation of the definition of a contrast's kind, or an empty string.

    For example, the baseline of the kind "plain" must be the same training on a single device.
    """
    return next(_differences(plan, contrast), "")


def _differences(plan: Plan, contrast: Contrast) -> Iterator[str]:
    subject = plan.arm(contrast.subject)
    baseline = [plan.arm(name) for name in contrast.baseline]
    if subject.name in contrast.baseline:
        yield "the subject is its own baseline"
    yield from _wrong_on_purpose(contrast, subject, baseline)
    if not baseline:
        return
    for arm, case in zip(baseline, _promised(contrast, subject.case, baseline), strict=True):
        if case is not None and arm.case.hash != case.hash:
            fields = ", ".join(_planned_unlike(arm.case, case)) or "another setting"
            yield (
                f"{arm.name} is not the {contrast.against} of {subject.case.id}:"
                f" it differs in {fields}"
            )
    if contrast.against == "sum_of_devices" and len({a.case.hash for a in baseline}) < len(
        baseline
    ):
        yield "the baseline counts a device twice"
    ideal = _ideal(contrast, subject, baseline)
    if abs(contrast.ideal / ideal - 1) > 1e-9:
        yield f"its ideal ratio is {contrast.ideal:g}, but the numbers of ranks imply {ideal:g}"


def _wrong_on_purpose(contrast: Contrast, subject: Arm, baseline: list[Arm]) -> Iterator[str]:
    """Yield the ways in which a contrast uses arms whose training is not correct or not checked."""
    if any(arm.role in (Role.ABLATION, Role.CONTROL) for arm in baseline):
        yield "its baseline trains incorrectly on purpose"
    if subject.role is Role.CONTROL and contrast.metric != "caught":
        yield "its subject is a control, which trains incorrectly on purpose"
    cost = contrast.against == "rung" and contrast.metric.endswith("_cost")
    if subject.role is Role.ABLATION and not cost:
        yield "its subject is an ablation, whose training is not checked"
    if subject.role is not Role.ABLATION and not subject.case.communicate:
        yield "its ranks do not communicate"


def _promised(contrast: Contrast, subject: CaseSpec, baseline: list[Arm]) -> list[CaseSpec | None]:
    """Return the case that each arm of the baseline must have; None if it may have any case."""
    kind = contrast.against
    if kind == "plain" and not subject.script:
        return [recipes.plain(subject)] * len(baseline)
    if kind == "sum_of_devices":
        return [recipes.device(subject, arm.case.first_device) for arm in baseline]
    if kind == "wrapped":
        return [subject.at(1)] * len(baseline)
    if kind == "smallest_fit" or (kind == "one_node" and contrast.metric != "throughput_ratio"):
        return [subject.at(arm.case.world_size, arm.case.nodes) for arm in baseline]
    if kind == "one_node":  # the same number of ranks, all on one node
        return [subject.at(subject.world_size)] * len(baseline)
    return [None] * len(baseline)


def _ideal(contrast: Contrast, subject: Arm, baseline: list[Arm]) -> float:
    """Return the ratio under perfect scaling."""
    if not metrics.metric(contrast.metric).per_rank or contrast.against == "sum_of_devices":
        return 1.0
    return subject.case.world_size / sum(arm.case.world_size for arm in baseline)


def _planned_unlike(case: CaseSpec, promised: CaseSpec) -> Iterator[str]:
    """Yield the names of the fields in which two cases differ."""
    fields = fields_of(promised)
    yield from (name for name, value in fields_of(case).items() if value != fields[name])
