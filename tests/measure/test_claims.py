"""Claims of a user's files are derived in a process that has not imported them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.cases import CaseSpec, Catalogue, Device, Site
from harness.measure import claims
from harness.record import Described, Reference

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
HEAD = 'SUPPORTS = dict(worlds="any", oracle="{}", initial="broadcast", replicas=True)'


def test_a_head_that_was_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    """The file itself could change its head in the process that describes it."""
    path = tmp_path / "turncoat.py"
    path.write_text(HEAD.format("shard_ordered"))
    known = Catalogue([tmp_path])
    case = known.normalise(SITE.case("turncoat/mlp-nano"))
    assert "state no expectations" in claims.of_files(case, Described(), None, known).error
    path.write_text(HEAD.format("micro_batched"))
    answer = claims.of_files(case, Described(), None, known)
    assert "has changed since the case was planned" in answer.error


def test_a_witness_uses_only_the_files_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD.format("shard_ordered"))
    (tmp_path / "read.py").write_text("INPUT = dict()\nKNOBS = dict(workers=1)")
    known = Catalogue([tmp_path])
    knobs = {"paced.step_ms": 5.0, "read.workers": 2}
    case = known.normalise(SITE.case("mine/paced-small", data="read", knobs=knobs))
    witness = claims.witness(case, known)
    assert witness is not None and (witness.strategy, witness.data) == ("single", "resident")
    assert witness.knobs == {"paced.step_ms": 5.0}
    assert claims.witness(known.normalise(SITE.case("ddp/mlp-nano")), known) is None


@pytest.mark.parametrize("other", [dict(micro_batch=4), dict(seed=1), dict(model="moe")])
def test_a_forged_reference_key_is_not_shared(other: dict[str, object]) -> None:
    """Otherwise a case with half of the samples could have a reference with equally few."""
    known = Catalogue()
    reference = Reference(key="forged", shards=2, limit=0.0, memory_bytes=1)

    def key(case: CaseSpec) -> str:
        answer = claims.of_its_training(case, Described(reference=reference), known)
        assert answer.reference is not None
        return answer.reference.key

    case = known.normalise(SITE.case("ddp/mlp-nano"))
    assert key(case) != key(replace(case, **other))  # type: ignore[arg-type]
    assert key(case) == key(known.normalise(SITE.case("fsdp/mlp-nano")))
    assert key(case) == key(replace(case, micro_batch=8)), "the default batch, stated explicitly"
