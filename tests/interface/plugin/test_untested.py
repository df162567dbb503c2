"""Claims that a session does not test are listed with the reason; some suite tests each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.cases import BoundSource, Catalogue, Device, Site, Threshold
from harness.cases.targets import normalise
from harness.interface import options
from harness.interface.plugin import session

SUITES = Path(__file__).parents[3] / "suites"
KNOWN = Catalogue()


def rules() -> tuple[Threshold, ...]:
    return options.thresholds(None, [SUITES], KNOWN)


def published() -> set[str]:
    return {r.name for r in rules() if r.source is BoundSource.PUBLISHED}


def site(device: Device, *nodes: int) -> Site:
    backend = "nccl" if device is Device.CUDA else "gloo"
    return Site(device=device, backend=backend, nodes=nodes)


@pytest.mark.parametrize(
    ("where", "name", "reason"),
    [
        (site(Device.CPU, 2), "claim_175m_b64_speedup_2", "needs GPUs"),
        (site(Device.CUDA, 2), "claim_175m_b64_speedup_8", "needs 8 ranks, here are 2"),
        (site(Device.CUDA, 1), "claim_175m_b64_efficiency", "needs 2 ranks, here is one rank"),
        (site(Device.CUDA, 8), "claim_1b3_4x8_speedup_4", "needs 4 nodes, here is one node"),
        (site(Device.CPU, 2), "claim_recovery_usual", "no recovery was selected"),
    ],
)
def test_the_reason_names_what_is_missing(where: Site, name: str, reason: str) -> None:
    reasons = {rule.name: why for rule, why in session.untested(rules(), (), where, recovers=False)}
    assert reasons[name].startswith(reason)
    assert set(reasons) == published(), "every claim must be listed if none is judged"


def test_claims_are_grouped_by_reason() -> None:
    lines = session.lines(
        rules(), ("claim_175m_b64_speedup_2",), site(Device.CPU, 2), recovers=True
    )
    assert lines[0] == f"scaling: {len(published()) - 4} published claims are not tested here:"
    assert lines[1] == "  needs GPUs:"
    assert not any("recovery" in line or "speedup_2 (>=1.95" in line for line in lines)
    assert session.lines(rules(), published(), site(Device.CPU, 2), recovers=False) == []


def judged(where: Site) -> set[str]:
    """Return the rules for which plans of the acceptance suites have a contrast."""
    sys.path.insert(0, str(SUITES))
    try:
        import recipes
    finally:
        sys.path.pop(0)
    out = set()
    for recipe in (recipes.claim_175m_b64, recipes.claim_1b3_4x8, recipes.claim_memory):
        for plan in (normalise(raw, KNOWN) for raw in recipe(where)):
            metrics = {c.metric for c in plan.contrasts} | {"comm_share", "exposed_comm_share"}
            cases = [plan.arm(c.subject).case for c in plan.contrasts]
            out |= {r.name for r in rules() if r.metric in metrics and any(map(r.about, cases))}
    return out


def test_on_the_claimed_system_every_claim_is_judged() -> None:
    every = judged(site(Device.CUDA, 8, 8, 8, 8)) | judged(site(Device.CUDA, 8))
    assert {n for n in published() - every if "recovery" not in n} == set()


def test_every_claim_has_a_twin_on_cpus() -> None:
    """The recipes for the scaling sweep, for nodes and for memory also return plans for CPUs."""
    assert {"twin_175m_b64_speedup_2", "twin_175m_b64_efficiency"} <= judged(site(Device.CPU, 4))
    sys.path.insert(0, str(SUITES))
    try:
        import recipes
    finally:
        sys.path.pop(0)
    nodes = site(Device.CPU, 1, 1)
    (ladder,) = recipes.claim_1b3_4x8(nodes)
    assert {c.against for c in ladder.contrasts} == {"one_node"}
    memory = recipes.claim_memory(nodes)
    assert {c.metric for plan in memory for c in plan.contrasts} == {"memory_saved"}
