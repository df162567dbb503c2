"""Recipes: plain functions that return complete plans. A ladder is one, ``versus`` another.

Arms of a plan are measured in the same blocks, so any two of them can be compared: speedup,
memory saved, codec break-even, A/A and the pinned control are all contrasts of two arms.
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

#: What a suite hands to ``@scaling``: the site in, plans out.
Recipe = Callable[[Site], Sequence[Plan]]
#: Ranks on each node of a world of that size.
Nodes = Callable[[int], tuple[int, ...]]

REAL = Protocol(steps=32, cut=6)
PACED = Protocol(steps=16, cut=2)
#: All of a short training, a few times over.
LEARNING = Protocol(steps=320, cut=6, max_blocks=4)
#: Clocks and power of a GPU settle within seconds, not within steps.
ON_GPUS = Protocol(steps=6, cut=2, cut_s=2.0, kept_s=2.0)


def plain(case: CaseSpec) -> CaseSpec:
    """One device, no wrapper: what a user would run without any parallelism."""
    return replace(case.at(1), strategy=PLAIN, compressor=None, mesh="", knobs=_of_model(case))


def _of_model(case: CaseSpec) -> dict[str, Json]:
    """The knobs of the model and of its input: what another strategy trains as well."""
    return {
        key: knob
        for key, knob in case.knobs.items()
        if key.startswith((f"{case.model}.", f"{case.data}."))
    }


def device(case: CaseSpec, number: int) -> CaseSpec:
    """The plain case on one device."""
    return replace(plain(case), first_device=number)


@dataclass(frozen=True, kw_only=True)
class Against:
    """One thing that rungs are held against: arms, added up, and how many ranks these are.

    ``exactly``: only the rung of as many ranks is held against it.
    """

    kind: str
    arms: tuple[Arm, ...]
    ranks: int
    exactly: bool = False

    @property
    def suffix(self) -> str:
        """How contrasts against it are called."""
        return f"{self.kind}@{self.ranks}" if self.kind == "smallest_fit" else self.kind


def _rung(case: CaseSpec, ranks: int, nodes: Nodes, role: Role = Role.BASELINE) -> Arm:
    return Arm(name=f"@{ranks}", case=case.at(ranks, nodes(ranks)), role=role)


def _plain(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    arm = Arm(name="plain", case=plain(case), role=Role.BASELINE)
    return [Against(kind="plain", arms=(arm,), ranks=1)]


def _wrapped(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    return [Against(kind="wrapped", arms=(_rung(case, 1, _one),), ranks=1)]


def _one_node(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    ranks = case.nodes[0]
    return [Against(kind="one_node", arms=(_rung(case, ranks, _one),), ranks=ranks)]


def _smallest_fit(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    return [
        Against(kind="smallest_fit", arms=(_rung(case, world, nodes),), ranks=world)
        for world in worlds
    ]


def _sum_of_devices(case: CaseSpec, worlds: Sequence[int], nodes: Nodes) -> list[Against]:
    alone = [
        Arm(name=f"plain@device{i}", case=device(case, i), role=Role.BASELINE)
        for i in range(max(worlds))
    ]
    kind = "sum_of_devices"
    return [
        Against(kind=kind, arms=tuple(alone[:world]), ranks=world, exactly=True) for world in worlds
    ]


def _one(ranks: int) -> tuple[int, ...]:
    return (ranks,)


#: What a ladder can be held against, by name.
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
    """The case at each world size, against each kind of baseline.

    Args:
        worlds: world sizes of the rungs, ascending.
        baselines: plain (``single`` on one device), wrapped (the strategy at one rank), one_node
            (the first node alone), smallest_fit (the smallest rung in which it fits; settled once
            the agent has said what fits), sum_of_devices (each device alone, added up).
        metrics: each judged at each rung against each baseline.
        shape: ranks per node of a world; one node without it.
        ablations: what the largest rung is also measured without, in the same blocks.
        epoch_samples: samples of one epoch; reports then tell how long it takes.
        predict: nodes, and ranks on each, of a size that is foreseen from these. A rank of every
            rung gets the batch that it has there, so a strong case is measured as a weak one.
        largest_only: the largest world is judged; the smaller ones are measured in one block, for
            the curve, and judged only if the largest fails.
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
    # Baselines first, so that every pass starts from what the rungs are compared with.
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
    """One metric of the rung of ``n`` ranks, against everything that it can be held against."""
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
    """A ladder whose largest rung is held against one more case, in the same blocks.

    Args:
        name: of the arm that ``other`` becomes.
        metrics: each compared with it.
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
    """Lays the ranks over nodes in several ways, each against the first: [1x8, 2x4].

    Args:
        layouts: ranks on each node; the first is a single node, all have as many ranks.
    """
    cases = [case.at(sum(nodes), nodes) for nodes in layouts]
    if len(layouts[0]) != 1 or len({c.world_size for c in cases}) != 1:
        raise SpecError(
            f"shapes {', '.join(c.world for c in cases)}",
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
    """A rung without its communication, or with its data at hand: what that saves is its cost."""
    if kind is Ablation.DATA and rung.case.data == Data.RESIDENT:
        raise SpecError(
            "the data of this case is on the device already: nothing to ablate",
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
    """``b`` against ``a`` in the same blocks: memory saved, bytes saved, break-even, A/A."""
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
    """Several cases in the same blocks, ratios to the first: schedules, strategies, codecs.

    Args:
        cases: by the name of their line in the table.
        metrics: its columns.
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
    """When a case's loss is there, beside strategy ``by`` and beside ranks that do not talk at all.

    For strategies that change the mathematics: how fast their steps are says nothing alone.

    Args:
        to_loss: nats above the floor of the data.
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
    """The case against itself (A/A): whatever differs is noise, and nothing may be decided."""
    plan = versus(case, case, ("throughput_ratio",), protocol=protocol)
    return replace(plan, name=f"{case.id} A/A")


#: The setup of the pinned control: an environment that stays as it is.
PINNED = "control"


def pinned(plan: Plan) -> Plan:
    """The plan with its largest rung measured in the pinned environment, too, in the same blocks.

    What a machine does to both cancels in their ratio. A plan without timed subjects is left as
    it is.
    """
    subjects = [a for a in plan.arms if a.role is Role.SUBJECT]
    if not subjects or not plan.protocol.max_blocks or subjects[-1].case.script:
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
    """A known-wrong case: the verdict is PASS only if the correctness gate catches it."""
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
    """A case that is checked and not timed."""
    return Plan(
        name=f"{case.id} gate",
        arms=(Arm(name="gated", case=case, role=Role.SUBJECT),),
        contrasts=(),
        protocol=replace(REAL, min_blocks=0, max_blocks=0),
    )


def paired(case: CaseSpec) -> Plan:
    """A case that pairs of nodes train, to see which of them are slow."""
    return replace(gated(case), name=f"{case.id} pairs")


def strong_worlds(case: CaseSpec, worlds: Sequence[int]) -> tuple[int, ...]:
    """The world sizes that divide the global batch, which a strong case has; all without one."""
    if case.global_batch is None:
        return tuple(worlds)
    shards = [world * case.accumulate for world in worlds]
    return tuple(
        n for n, shard in zip(worlds, shards, strict=True) if case.global_batch % shard == 0
    )
