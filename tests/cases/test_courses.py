"""Courses: who is broken in which trial, and in which worlds a training goes on."""

from __future__ import annotations

import pytest

from harness.cases import Device, Site
from harness.cases.fault_scenario import Fault, FaultScenario, resharded

CASE = Site(device=Device.CPU, backend="gloo", nodes=(3, 1, 2), emulated=True).case("ddp/mlp-nano")


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.HANG])
def test_every_rank_has_its_turn(fault: Fault) -> None:
    course = FaultScenario(case=CASE, fault=fault)
    assert [course.victim(i) for i in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize("fault", [Fault.AGENT, Fault.NODE])
def test_of_what_takes_a_node_along_every_node_has_its_turn(fault: Fault) -> None:
    """Nodes of 3, 1 and 2 ranks begin at ranks 0, 3 and 4."""
    course = FaultScenario(case=CASE, fault=fault)
    assert [course.victim(i) for i in range(4)] == [0, 3, 4, 0]


def test_a_training_goes_on_with_a_rank_less_and_one_more() -> None:
    smaller, larger = resharded(CASE)
    assert smaller.into is not None and larger.into is not None
    assert (smaller.case.world_size, smaller.into.world_size) == (6, 5)
    assert (larger.case.world_size, larger.into.world_size) == (5, 6), "no more than there are"


def test_a_name_says_what_is_tried() -> None:
    names = {
        FaultScenario(case=CASE, fault=fault, asynchronous=later, into=into).name
        for fault in Fault
        for later in (False, True)
        for into in (None, CASE.at(5))
    }
    assert len(names) == len(Fault) * 4
    assert f"{CASE.id} kill async into 5" in names
