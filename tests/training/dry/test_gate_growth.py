"""The cost of a correctness check per rank does not grow with the world."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.cases import CaseSpec, Catalogue, Device, Site
from harness.training.context import load
from harness.training.rank.oracle import Oracle
from harness.training.rank.tasks.gate import run_gate
from tests.training.dry.alone import apart, context, world

KNOWN = Catalogue()


def passes(case: CaseSpec, files: Mapping[str, str]) -> int:
    """Return the number of passes of rank 1's reference in a whole correctness check.

    The checks fail because other ranks are missing, but this does not change the amount of compute.
    """
    loaded = load(files)
    count, backward = [0], Oracle.backward

    def counted(self: Oracle, batch: object) -> object:
        count[0] += 1
        return backward(self, batch)  # type: ignore[arg-type]

    Oracle.backward = counted  # type: ignore[method-assign,assignment]
    with world(1, case.world_size):
        run_gate(loaded, case, lambda c: context(loaded, c, 1), lambda: None)
    return count[0]


@pytest.mark.full
@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["ddp", "local_sgd", "compressed:topk"])
def test_the_reference_of_a_rank_does_not_grow_with_the_world(strategy: str) -> None:
    listed = []
    for ranks in (8, 64):
        site = Site(device=Device.CPU, backend="gloo", nodes=(8,) * (ranks // 8))
        case = KNOWN.twin(KNOWN.normalise(site.case(f"{strategy}/mlp-nano")))
        listed.append(apart(passes, case, KNOWN.files(case)))
    assert listed[0] == listed[1] > 0
