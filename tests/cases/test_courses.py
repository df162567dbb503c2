"""A fault scenario chooses the rank that fails in each trial, and the world that training resumes
in.
"""

from __future__ import annotations

import pytest

from harness.cases import Device, Site
from harness.cases.fault_scenario import Fault, FaultScenario, resharded

CASE = Site(device=Device.CPU, backend="gloo", nodes=(3, 1, 2), emulated=True).case("ddp/mlp-nano")


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.HANG])
def test_process_faults_hit_every_rank_in_turn(fault: Fault) -> None:
    course = FaultScenario(case=CASE, fault=fault)
    assert [course.victim(i) for i in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize("fault", [Fault.AGENT, Fault.NODE])
def test_node_faults_hit_every_node_in_turn(fault: Fault) -> None:
    """The nodes have 3, 1 and 2 ranks, so their first ranks are 0, 3 and 4."""
    course = FaultScenario(case=CASE, fault=fault)
    assert [course.victim(i) for i in range(4)] == [0, 3, 4, 0]


def test_training_resumes_with_one_rank_less_and_one_more() -> None:
    smaller, larger = resharded(CASE)
    assert smaller.into is not None and larger.into is not None
    assert (smaller.case.world_size, smaller.into.world_size) == (6, 5)
    assert (larger.case.world_size, larger.into.world_size) == (5, 6), (
        "the larger world must not exceed the ranks of the site"
    )


def test_names_of_fault_scenarios_are_unique() -> None:
    names = {
        FaultScenario(case=CASE, fault=fault, asynchronous=later, into=into).name
        for fault in Fault
        for later in (False, True)
        for into in (None, CASE.at(5))
    }
    assert len(names) == len(Fault) * 4
    assert f"{CASE.id} kill async into 5" in names
