"""Recipes: functions that return complete plans, such as ``ladder`` and ``versus``.

The arms of a plan are measured in the same blocks, so any two of them can be compared. Speedup,
memory saved, the break-even of a compressor, A/A tests and the pinned control are all contrasts
between two arms.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.base.documents import Json
from harness.base.errors import SpecError
from harness.cases.batching import alike
from harness.cases.case import PLAIN, Ablation, CaseSpec, Data
from harness.cases.metrics import Form, metric
from harness.cases.plan import Arm, Contrast, Plan, Protocol, Role
from harness.cases.site import Site

#: The type of a recipe in ``@scaling``: a function of the site that returns plans.
Recipe = Callable[[Site], Sequence[Plan]]
#: A function that returns the ranks on each node for a world size.
Nodes = Callable[[int], tuple[int, ...]]

#: The default protocol.
REAL = Protocol(steps=32, cut=6)
#: The protocol of simulated compute, whose step times hardly vary.
PACED = Protocol(steps=16, cut=2)
#: The protocol of plans that train to a target loss. Every launch is a short but complete training.
LEARNING = Protocol(steps=320, cut=6, max_blocks=4)
#: The protocol on GPUs. It states durations, because clocks and power need seconds to settle,
#: however many steps that is.
ON_GPUS = Protocol(steps=6, cut=2, cut_s=2.0, kept_s=2.0)


def plain(case: CaseSpec) -> CaseSpec:
    """Return the case on one device and without a wrapper, as a user would run it without any
    parallelism.
    """
    return replace(case.at(1), strategy=PLAIN, compressor=None, mesh="", knobs=_of_model(case))


def _of_model(case: CaseSpec) -> dict[str, Json]:
    """Return the knobs of the model and of its input, which also apply to other strategies."""
    return {
        key: knob
        for key, knob in case.knobs.items()
        if key.startswith((f"{case.model}.", f"{case.data}."))
    }


def device(case: CaseSpec, number: int) -> CaseSpec:
    """Return the plain case on the device with this number."""
    return replace(plain(case), first_device=number)


@dataclass(frozen=True, kw_only=True)
class Against:
    """A baseline of a scaling sweep.

    The values of its ``arms`` are added up. ``ranks`` is their total number of ranks. ``exactly``
    states that only the world with this number of ranks is compared with it.
    """

    kind: str
    arms: tuple[Arm, ...]
    ranks: int
    exactly: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of the names of contrasts with this baseline."""
        return f"{self.kind}@{self.ranks}" if self.kind == "smallest_fit" else self.kind


def _rung(case: CaseSpec, ranks: int, nodes: Nodes, role: Role = Role.BASELINE) -> Arm:
    """Return the arm of one world size of a scaling sweep."""
    return Arm(name=f"@{ranks}", case=case.at(ranks, nodes(ranks)), role=role)


def _plain(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    """Return the baseline ``plain``: one device without a wrapper."""
    arm = Arm(name="plain", case=plain(case), role=Role.BASELINE)
    return [Against(kind="plain", arms=(arm,), ranks=1)]


def _wrapped(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    """Return the baseline ``wrapped``: the same strategy on one rank."""
    return [Against(kind="wrapped", arms=(_rung(case, 1, _one),), ranks=1)]


def _one_node(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    """Return the baseline ``one_node``: the ranks of the first node alone."""
    ranks = case.nodes[0]
    return [Against(kind="one_node", arms=(_rung(case, ranks, _one),), ranks=ranks)]


def _smallest_fit(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    """Return the candidates for the baseline ``smallest_fit``: each world size of the sweep."""
    return [
        Against(kind="smallest_fit", arms=(_rung(case, world, nodes),), ranks=world)
        for world in worlds
    ]


def _sum_of_devices(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    """Return the baselines ``sum_of_devices``: each device of a world, measured separately."""
    alone = [
        Arm(name=f"plain@device{i}", case=device(case, i), role=Role.BASELINE)
        for i in range(max(worlds))
    ]
    kind = "sum_of_devices"
    return [
        Against(kind=kind, arms=tuple(alone[:world]), ranks=world, exactly=True) for world in worlds
    ]


def _one(ranks: int) -> tuple[int, ...]:
    """Return the layout of a world on one node."""
    return (ranks,)


#: The baselines of a scaling sweep by name.
_AGAINST: Mapping[str, Callable[[CaseSpec, Sequence[int], Nodes], list[Against]]] = {
    "plain": _plain,
    "wrapped": _wrapped,
    "one_node": _one_node,
    "smallest_fit": _smallest_fit,
    "sum_of_devices": _sum_of_devices,
}


def ladder(  # noqa: PLR0913  (all that a ladder may ask for)
    case: CaseSpec,
    worlds: Sequence[int],
    *,
    baselines: Sequence[str] = ("plain", "wrapped"),
    metrics: Sequence[str] = ("efficiency",),
    protocol: Protocol = REAL,
    shape: Nodes | None = None,
    ablations: Sequence[Ablation] = (),
    epoch_samples: int | None = None,
    predict: tuple[int, int] | None = None,
    largest_only: bool = False,
) -> Plan:
    """Return a scaling sweep: the case at each world size, compared with each kind of baseline.

    Args:
        worlds: world sizes, ascending.
        baselines: plain (``single`` on one device), wrapped (the strategy on one rank), one_node
            (the first node alone), smallest_fit (the smallest world size whose memory suffices;
            agents compute it), sum_of_devices (the sum of all devices, each measured alone).
        metrics: metrics that are judged at each world size against each baseline.
        shape: function that returns the number of ranks on each node for a world size. Without it
            all ranks are on one node.
        ablations: parts of a step. For each of them an additional arm at the largest world size
            omits the part, in the same blocks.
        epoch_samples: samples of one epoch; reports then print the duration of an epoch.
        predict: (number of nodes, ranks on each node) of a world that is not launched, but
            predicted from the launched worlds. Each rank gets the batch that it has in the
            predicted world, so a case in strong mode is measured in weak mode.
        largest_only: judge only the largest world size. Smaller worlds are measured in a single
            block for the curve, and are judged only if the largest fails.
    """
    nodes = shape or _one
    target = case.at(math.prod(predict), (predict[1],) * predict[0]) if predict else None
    case = alike(case, target) if target else case
    if unknown := [kind for kind in baselines if kind not in _AGAINST]:
        raise SpecError(
            f"no baseline named {unknown[0]!r}",
            where=case.id,
            expected=", ".join(_AGAINST),
            fix="scaleproof run plan",
        )
    rungs = [_rung(case, world, nodes, Role.SUBJECT) for world in worlds]
    against = [a for kind in dict.fromkeys(baselines) for a in _AGAINST[kind](case, worlds, nodes)]
    arms = {arm.name: arm for arm in rungs}
    for arm in (arm for a in against for arm in a.arms):
        arms.setdefault(arm.name, arm)
    contrasts = [
        replace(c, curve=largest_only and world < max(worlds))
        for name in metrics
        for world in worlds
        for c in _contrasts(name, world, against)
    ]
    for ablation in ablations:
        arm, contrast = ablated(arms[f"@{max(worlds)}"], ablation)
        arms[arm.name] = arm
        contrasts.append(contrast)
    # Baselines come first, so that the first results of a pass can already be compared.
    order = sorted(arms.values(), key=lambda a: (a.role is Role.SUBJECT, a.case.world_size))
    return Plan(
        name=f"{case.family}{case.extras}",
        arms=tuple(order),
        contrasts=tuple(contrasts),
        protocol=protocol,
        epoch_samples=epoch_samples,
        target=target,
    )


def _contrasts(name: str, n: int, against: Sequence[Against]) -> Iterator[Contrast]:
    """Yield the contrasts of one metric at ``n`` ranks with every baseline that applies."""
    asked = metric(name)
    subject = f"@{n}"
    if asked.form is Form.ABSOLUTE:
        yield Contrast(
            name=f"{name}{subject}", metric=name, subject=subject, baseline=(), against="nothing"
        )
        return
    for other in against:
        baseline = tuple(arm.name for arm in other.arms)
        if baseline == (subject,) or other.ranks > n or (other.exactly and other.ranks != n):
            continue
        yield Contrast(
            name=f"{name}{subject}/{other.suffix}",
            metric=name,
            subject=subject,
            baseline=baseline,
            against=other.kind,
            ideal=n / other.ranks if asked.per_rank and not other.exactly else 1.0,
        )


def compared(plan: Plan, name: str, other: CaseSpec, metrics: Sequence[str]) -> Plan:
    """Return a scaling sweep whose largest world is also compared with the case ``other``.

    Both are measured in the same blocks.

    Args:
        name: name of the arm of ``other``.
        metrics: metrics that are compared.
    """
    rung = max((a for a in plan.arms if a.role is Role.SUBJECT), key=lambda a: a.case.world_size)
    arm = Arm(name=name, case=other.at(rung.case.world_size, rung.case.nodes), role=Role.BASELINE)
    contrasts = tuple(
        Contrast(
            name=f"{metric}{rung.name}/{name}",
            metric=metric,
            subject=rung.name,
            baseline=(name,),
            against="other",
        )
        for metric in metrics
    )
    return replace(plan, arms=(*plan.arms, arm), contrasts=(*plan.contrasts, *contrasts))


def shapes(
    case: CaseSpec, layouts: Sequence[tuple[int, ...]], *, protocol: Protocol = REAL
) -> Plan:
    """Return a plan that compares several layouts of the same number of ranks on nodes.

    Args:
        layouts: number of ranks on each node, for each layout, such as (8,) and (4, 4). All layouts
            are compared with the first one, which is a single node.
    """
    cases = [case.at(sum(nodes), nodes) for nodes in layouts]
    if len(layouts[0]) != 1 or len({c.world_size for c in cases}) != 1:
        raise SpecError(
            f"shapes {', '.join(c.world for c in cases)} cannot be compared",
            where=case.id,
            expected="layouts of equally many ranks, the first on one node",
            fix="shapes(case, [(8,), (4, 4)])",
        )
    inside, *across = [Arm(name=c.world, case=c, role=Role.SUBJECT) for c in cases]
    return Plan(
        name=f"{case.family}{case.extras} shapes",
        arms=(replace(inside, role=Role.BASELINE), *across),
        contrasts=tuple(
            Contrast(
                name=f"throughput_ratio@{arm.name}/one_node",
                metric="throughput_ratio",
                subject=arm.name,
                baseline=(inside.name,),
                against="one_node",
            )
            for arm in across
        ),
        protocol=protocol,
    )


def ablated(rung: Arm, kind: Ablation) -> tuple[Arm, Contrast]:
    """Return an arm that omits a part of the step, and the contrast that measures the saved time.

    The arm does not communicate, or keeps its batches on the device.
    """
    if kind is Ablation.DATA and rung.case.data == Data.RESIDENT:
        raise SpecError(
            "the data of this case is already on the device, so there is nothing to ablate",
            where=rung.case.id,
            expected="data=loaded",
            fix="--set data=loaded",
        )
    case = rung.case.fed_by(Data.RESIDENT)
    if kind is Ablation.COMMUNICATION:
        case = replace(rung.case, communicate=False)
    arm = Arm(name=f"{rung.name}-{kind}", case=case, role=Role.ABLATION)
    contrast = Contrast(
        name=f"{kind}_cost{rung.name}",
        metric=f"{kind}_cost",
        subject=arm.name,
        baseline=(rung.name,),
        against="rung",
    )
    return arm, contrast


def versus(a: CaseSpec, b: CaseSpec, metrics: Sequence[str], *, protocol: Protocol = REAL) -> Plan:
    """Return a plan that compares ``b`` with ``a`` in the same blocks.

    It is used to measure saved memory, saved bytes, the break-even of a compressor, and A/A tests.
    """
    return Plan(
        name=f"{b.family}{b.extras} vs {a.id}",
        arms=(Arm(name="a", case=a, role=Role.BASELINE), Arm(name="b", case=b, role=Role.SUBJECT)),
        contrasts=tuple(
            Contrast(
                name=f"{metric}@b/other",
                metric=metric,
                subject="b",
                baseline=("a",),
                against="other",
            )
            for metric in metrics
        ),
        protocol=protocol,
    )


def beside(
    name: str,
    cases: Mapping[str, CaseSpec],
    metrics: Sequence[str],
    *,
    protocol: Protocol = REAL,
) -> Plan:
    """Return a plan that measures several cases in the same blocks, with ratios to the first case.

    Args:
        cases: cases by name; reports show one row per case.
        metrics: metrics; reports show one column per metric.
    """
    first, *others = cases
    roles = {first: Role.BASELINE}
    contrasts = []
    for m in metrics:
        absolute = metric(m).form is Form.ABSOLUTE
        for arm in cases if absolute else others:
            contrasts.append(
                Contrast(
                    name=f"{m}@{arm}",
                    metric=m,
                    subject=arm,
                    baseline=() if absolute else (first,),
                    against="nothing" if absolute else "other",
                )
            )
    return Plan(
        name=name,
        arms=tuple(
            Arm(name=arm, case=case, role=roles.get(arm, Role.SUBJECT))
            for arm, case in cases.items()
        ),
        contrasts=tuple(contrasts),
        protocol=protocol,
    )


def learning(
    case: CaseSpec, by: str, *, to_loss: float = 0.3, protocol: Protocol = LEARNING
) -> Plan:
    """Return a plan that compares how fast a case and the strategy ``by`` reach the same loss.

    A third arm is ``by`` without communication. Strategies that change the mathematics of training
    need this plan, because their step time does not show how well they learn.

    Args:
        to_loss: target loss in nats above the entropy floor of the data.
    """
    usual = replace(case, strategy=by, knobs=_of_model(case))
    cases = {by: usual, "no communication": replace(usual, communicate=False), case.strategy: case}
    metrics = (
        "time_to_loss", "time_to_loss_ratio", "samples_to_loss", "samples_to_loss_ratio", "step_s",
    )  # fmt: skip
    plan = beside(f"{case.family}{case.extras} learning", cases, metrics, protocol=protocol)
    apart = [replace(arm, role=Role.ABLATION) for arm in plan.arms if not arm.case.communicate]
    others = [arm for arm in plan.arms if arm.case.communicate]
    return replace(plan, arms=(*others, *apart), to_loss=to_loss)


def like(case: CaseSpec, *, protocol: Protocol = REAL) -> Plan:
    """Return a plan that compares the case with itself (A/A).

    Every difference is noise, so a PASS or FAIL because of a difference would be an error.
    """
    plan = versus(case, case, ("throughput_ratio",), protocol=protocol)
    return replace(plan, name=f"{case.id} A/A")


#: The name of the pinned environment: an installation whose software never changes.
PINNED = "control"


def pinned(plan: Plan) -> Plan:
    """Return the plan with an arm that measures its largest world size in the pinned environment.

    Changes of the machine affect the subject and this arm equally, and cancel in their ratio. A
    plan without timed subjects is returned unchanged.
    """
    subjects = [a for a in plan.arms if a.role is Role.SUBJECT]
    if not subjects or plan.checks_only or subjects[-1].case.script:
        return plan
    last = max(subjects, key=lambda arm: arm.case.world_size)
    arm = Arm(
        name=f"{last.name}-{PINNED}", case=replace(last.case, setup=PINNED), role=Role.BASELINE
    )
    ratio = Contrast(
        name=f"throughput_ratio{last.name}/{PINNED}",
        metric="throughput_ratio",
        subject=last.name,
        baseline=(arm.name,),
        against=PINNED,
    )
    return replace(plan, arms=(arm, *plan.arms), contrasts=(*plan.contrasts, ratio))


def control(case: CaseSpec) -> Plan:
    """Return a plan for a case that is incorrect on purpose.

    The plan passes only if the correctness check detects the defect.
    """
    return Plan(
        name=f"{case.family}{case.extras} control",
        arms=(Arm(name="control", case=case, role=Role.CONTROL),),
        contrasts=(
            Contrast(
                name="caught", metric="caught", subject="control", baseline=(), against="gate"
            ),
        ),
        protocol=replace(REAL, min_blocks=0, max_blocks=0),
    )


def gated(case: CaseSpec) -> Plan:
    """Return a plan that checks a case for correctness without timing it."""
    return Plan(
        name=f"{case.id} gate",
        arms=(Arm(name="gated", case=case, role=Role.SUBJECT),),
        contrasts=(),
        protocol=replace(REAL, min_blocks=0, max_blocks=0),
    )


def paired(case: CaseSpec) -> Plan:
    """Return a plan that trains a case on pairs of nodes, to find slow nodes."""
    return replace(gated(case), name=f"{case.id} pairs")


def strong_worlds(case: CaseSpec, worlds: Sequence[int]) -> tuple[int, ...]:
    """Return the world sizes that divide the global batch of the case.

    Return all world sizes if the case has no global batch.
    """
    if case.global_batch is None:
        return tuple(worlds)
    shards = [world * case.accumulate for world in worlds]
    return tuple(
        n for n, shard in zip(worlds, shards, strict=True) if case.global_batch % shard == 0
    )
