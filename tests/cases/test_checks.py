"""Every mistake in a case is reported with a fix, and applying the fix removes the mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.cases import CaseSpec, Catalogue, Device, Mode, Site
from harness.cases.checks import check_knobs, mistakes

KNOWN = Catalogue()
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
CASE = KNOWN.normalise(SITE.case("ddp/decoder-nano"))


def told(case: CaseSpec) -> list[tuple[str, str, str]]:
    supports = KNOWN.get("strategies", case.strategy).supports
    return list(mistakes(case, supports, KNOWN.get("models", case.model).head["SIZES"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": "nanno"}, "did you mean 'nano'"),
        ({"strategy": "compressed"}, "needs a compressor"),
        ({"compressor": "int8"}, "takes no compressor"),
        ({"strategy": "single"}, "runs on one rank only"),
        ({"micro_batch": 0}, "micro_batch = 0"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"clip": -1.0}, "clip = -1.0"),
        ({"clip": float("nan")}, "clip = nan"),
        ({"last_batch": 0.0}, "last_batch = 0.0"),
        ({"last_batch": 0.5, "accumulate": 2}, "is not divided"),
        ({"shares": (1.0,)}, "do not fit 2 ranks"),
        ({"shares": (1.0, 0.0)}, "do not fit 2 ranks"),
        ({"mesh": "dp:2x"}, "mesh"),
        ({"mesh": "dp:4"}, "has 4 ranks"),
        ({"mesh": "pp:2"}, "has no dimension 'pp'"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"selective": True}, "applies only to checkpointing"),
        ({"tf32": True, "precision": "bf16"}, "tf32 has no effect with precision=bf16"),
        ({"tf32": True}, "a setting of CUDA devices"),
        ({"attention": "cudnn"}, "a kernel of CUDA devices"),
        ({"stragglers": "1"}, "RANK:SHARE"),
        ({"nodes": (1,)}, "do not add up to 2"),
        ({"mode": Mode.STRONG}, "strong mode needs a global batch"),
        ({"mode": Mode.STRONG, "global_batch": 8, "micro_batch": 4}, "derives the micro-batch"),
        ({"global_batch": 8}, "weak mode derives the global batch"),
    ],
)
def test_a_mistake_is_reported_and_its_fix_removes_it(change: dict[str, Any], says: str) -> None:
    if "size" in change:
        mistakes_of = told_before_the_rest(change)
    else:
        mistakes_of = told(replace(CASE, **change))
    hits = [m for m in mistakes_of if says in m[0] or says in m[1]]
    assert hits, mistakes_of
    what, expected, fix = hits[0]
    assert expected
    if fix.startswith("--set "):
        name, _, value = fix.removeprefix("--set ").partition("=")
        try:
            typed = json.loads(value)
        except ValueError:
            typed = value
        typed = tuple(typed) if isinstance(typed, list) else typed
        mended = told(replace(CASE, **{**change, name: typed}))
        assert what not in [m[0] for m in mended]


def told_before_the_rest(change: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return only the first mistake, because the later checks need an existing size."""
    case = replace(CASE, **change)
    supports = KNOWN.get("strategies", case.strategy).supports
    return [next(mistakes(case, supports, KNOWN.get("models", case.model).head["SIZES"]))]


def test_a_valid_case_has_no_mistakes() -> None:
    assert told(CASE) == []
    assert told(replace(CASE, device=Device.CUDA, backend="nccl")) == []


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"bucket": 1}, "did you mean 'buckets'"),
        ({"buckets": "two"}, "'two'"),
        ({"buckets": 0}, "from 1 to 9"),
        ({"buckets": 10}, "from 1 to 9"),
        ({"buckets": True}, "True"),
    ],
)
def test_an_unknown_or_invalid_knob_is_refused(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_knobs(knobs, {"buckets": 2, "rate": 1.0}, {"buckets": (1, 9)}, "here")
    assert says in str(refused.value)


def test_a_knob_at_its_default_is_dropped() -> None:
    assert check_knobs({"buckets": 2, "rate": 3}, {"buckets": 2, "rate": 1.0}, {}, "") == {
        "rate": 3.0
    }
