"""Recipes: plain functions that return complete plans. A ladder is one, ``versus`` another.

Arms of a plan are measured in the same blocks, so any two of them can be compared: speedup,
memory saved, codec break-even, A/A and the pinned control are all contrasts of two arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.base.errors import SpecError
from harness.spec import metrics as units
from harness.spec.case import Ablation, CaseSpec, Data, Mode
from harness.spec.plan import BASELINES, Arm, Contrast, Plan, Protocol, Role
from harness.spec.site import Site

#: What a suite hands to ``@scaling``: the site in, plans out.
Recipe = Callable[[Site], Sequence[Plan]]

REAL = Protocol(steps=28, cut=6)
PACED = Protocol(steps=14, cut=2)


def plain(case: CaseSpec) -> CaseSpec:
    """One device, no wrapper: what a user would run without any parallelism."""
    knobs = {k: v for k, v in case.knobs.items() if k.startswith(f"{case.model}.")}
    return replace(case.at(1), strategy="single", compressor=None, knobs=knobs)


def ladder(
    case: CaseSpec,
    worlds: Sequence[int],
    *,
    baselines: Sequence[str] = ("plain", "wrapped"),
    metrics: Sequence[str] = ("efficiency",),
    protocol: Protocol = REAL,
    shape: Callable[[int], tuple[int, ...]] | None = None,
    ablations: Sequence[Ablation] = (),
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
    """
    nodes = shape or (lambda n: (n,))
    arms = {
        f"@{n}": Arm(name=f"@{n}", case=case.at(n, nodes(n)), role=Role.SUBJECT) for n in worlds
    }
    references: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for kind in baselines:
        if kind == "plain":
            arms["plain"] = Arm(name="plain", case=plain(case), role=Role.BASELINE)
            references[kind] = [(("plain",), 1)]
        elif kind == "wrapped":
            arms.setdefault("@1", Arm(name="@1", case=case.at(1), role=Role.BASELINE))
            references[kind] = [(("@1",), 1)]
        elif kind == "one_node":
            ranks = case.nodes[0]
            arms.setdefault(
                f"@{ranks}", Arm(name=f"@{ranks}", case=case.at(ranks), role=Role.BASELINE)
            )
            references[kind] = [((f"@{ranks}",), ranks)]
        elif kind == "smallest_fit":
            references[kind] = [((f"@{n}",), n) for n in worlds]
        elif kind == "sum_of_devices":
            names = []
            for index in range(max(worlds)):
                name = f"plain@device{index}"
                alone = replace(plain(case), first_device=index)
                arms[name] = Arm(name=name, case=alone, role=Role.BASELINE)
                names.append(name)
            references[kind] = [(tuple(names[:n]), n) for n in worlds]
        else:
            raise SpecError(
                f"no baseline named {kind!r}",
                where=case.id,
                expected=", ".join(BASELINES),
                fix="scaleproof plan",
            )
    contrasts = []
    for metric in metrics:
        if units.metric(metric).form is units.Form.ABSOLUTE:
            contrasts += [
                Contrast(
                    name=f"{metric}@{n}", metric=metric, subject=f"@{n}", baseline=(),
                    against="nothing",
                )
                for n in worlds
            ]  # fmt: skip
            continue
        for n in worlds:
            for kind, candidates in references.items():
                for names_, ranks in candidates:
                    subject = f"@{n}"
                    summed = kind == "sum_of_devices"
                    if names_ == (subject,) or (ranks > n) or (summed and ranks != n):
                        continue
                    per_rank = metric in ("efficiency", "efficiency_of_ideal") and not summed
                    suffix = f"{kind}@{ranks}" if kind == "smallest_fit" else kind
                    contrasts.append(
                        Contrast(
                            name=f"{metric}{subject}/{suffix}",
                            metric=metric,
                            subject=subject,
                            baseline=names_,
                            against=kind,
                            ideal=n / ranks if per_rank else 1.0,
                        )
                    )
    for kind_ in ablations:
        arm, contrast = ablated(arms[f"@{max(worlds)}"], kind_)
        arms[arm.name] = arm
        contrasts.append(contrast)
    # Baselines first, so that every pass starts from what the rungs are compared with.
    order = sorted(arms.values(), key=lambda a: (a.role is Role.SUBJECT, a.case.world_size))
    return Plan(
        name=f"{case.family}{case.extras}",
        arms=tuple(order),
        contrasts=tuple(contrasts),
        protocol=protocol,
    )


def shapes(
    case: CaseSpec, layouts: Sequence[tuple[int, ...]], *, protocol: Protocol = REAL
) -> Plan:
    """The same ranks laid over nodes in several ways, each against the first: [1x8, 2x4].

    Args:
        layouts: ranks on each node; the first is a single node, all have as many ranks.
    """
    cases = [case.at(sum(nodes), nodes) for nodes in layouts]
    if len(layouts[0]) != 1 or len({c.world_size for c in cases}) != 1:
        raise SpecError(
            f"shapes {', '.join(c.world for c in cases)}", where=case.id,
            expected="one node first, and as many ranks in each",
            fix="shapes(case, [(8,), (4, 4)])",
        )  # fmt: skip
    inside, *across = [Arm(name=c.world, case=c, role=Role.SUBJECT) for c in cases]
    return Plan(
        name=f"{case.family}{case.extras} shapes",
        arms=(replace(inside, role=Role.BASELINE), *across),
        contrasts=tuple(
            Contrast(
                name=f"throughput_ratio@{arm.name}/one_node", metric="throughput_ratio",
                subject=arm.name, baseline=(inside.name,), against="one_node",
            )
            for arm in across
        ),
        protocol=protocol,
    )  # fmt: skip


def ablated(rung: Arm, kind: Ablation) -> tuple[Arm, Contrast]:
    """A rung without its communication, or with its data at hand: what that saves is its cost."""
    if kind is Ablation.DATA and rung.case.data is not Data.LOADED:
        raise SpecError(
            "its data lies on the device already: nothing to ablate",
            where=rung.case.id,
            expected="data=loaded",
            fix="--set data=loaded",
        )
    without: dict[str, Any] = (
        {"communicate": False} if kind is Ablation.COMMUNICATION else {"data": Data.RESIDENT}
    )
    arm = Arm(name=f"{rung.name}-{kind}", case=replace(rung.case, **without), role=Role.ABLATION)
    contrast = Contrast(
        name=f"{kind}_cost{rung.name}", metric=f"{kind}_cost", subject=arm.name,
        baseline=(rung.name,), against="rung",
    )  # fmt: skip
    return arm, contrast


def versus(a: CaseSpec, b: CaseSpec, metrics: Sequence[str], *, protocol: Protocol = REAL) -> Plan:
    """``b`` against ``a`` in the same blocks: memory saved, bytes saved, break-even, A/A."""
    return Plan(
        name=f"{b.family}{b.extras} vs {a.id}",
        arms=(
            Arm(name="a", case=a, role=Role.BASELINE),
            Arm(name="b", case=b, role=Role.SUBJECT),
        ),
        contrasts=tuple(
            Contrast(name=f"{m}@b/other", metric=m, subject="b", baseline=("a",), against="other")
            for m in metrics
        ),
        protocol=protocol,
    )


def like(case: CaseSpec, *, protocol: Protocol = REAL) -> Plan:
    """The case against itself (A/A): whatever differs is noise, and nothing may be decided."""
    plan = versus(case, case, ("throughput_ratio",), protocol=protocol)
    return replace(plan, name=f"{case.id} A/A")


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


def metrics_of(strategy: str) -> tuple[str, ...]:
    """Pipelines are judged against what their schedule allows, and shown as plain efficiency."""
    return ("efficiency", "efficiency_of_ideal") if strategy == "pipeline" else ("efficiency",)


def strong_worlds(case: CaseSpec, worlds: Sequence[int]) -> tuple[int, ...]:
    """The world sizes that divide a strong case's global batch; the others cannot run."""
    assert case.mode is Mode.STRONG and case.global_batch is not None
    shards = [n * case.accumulate for n in worlds]
    return tuple(n for n, s in zip(worlds, shards, strict=True) if case.global_batch % s == 0)
