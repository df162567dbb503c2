"""What a user's files claim is derived where none of them was imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Site
from harness.measure import claims
from harness.record import Described

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
HEAD = 'SUPPORTS = dict(worlds="any", oracle="{}", initial="broadcast", replicas=True)'


def test_a_head_that_was_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    """By its own file, too, in the process that describes it."""
    path = tmp_path / "turncoat.py"
    path.write_text(HEAD.format("shard_ordered"))
    known = Catalogue([tmp_path])
    case = known.normalise(SITE.case("turncoat/mlp-nano"))
    assert claims.of_files(case, Described(), known) == Described()
    path.write_text(HEAD.format("micro_batched"))
    with pytest.raises(SpecError, match="another one than when the case was planned"):
        claims.of_files(case, Described(), known)
