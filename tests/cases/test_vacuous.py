"""Rules that can judge nothing are reported, and rules that can judge something are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harness.cases import Catalogue
from harness.cases.metrics import METRICS, Form, metric
from harness.cases.rules import bounds, contradictions, families, matching, unknown

KNOWN = Catalogue()
NAMES = families(KNOWN)


@pytest.mark.parametrize("name", METRICS)
def test_a_bound_is_reported_if_every_or_no_possible_value_passes(name: str) -> None:
    """Bounds are tried at, within, and beyond the ends of the metric's range."""
    known = metric(name)
    if known.form is Form.GATE:
        assert not [*bounds({"metric": name, "at_least": 1})]
        assert [*bounds({"metric": name, "at_least": 0.5})]
        return
    low, high = known.possible
    ends = [-1.0, 0.0, 1e-6, 0.5, 1.0, 1.5, 1e9, low, high]
    for bound in (x for x in ends if math.isfinite(x)):
        inside = low < bound < high
        for key in ("at_least", "at_most"):
            assert (not [*bounds({"metric": name, key: bound})]) is inside, (key, bound)
    assert [*bounds({"metric": name, "at_least": math.inf})]
    assert [*bounds({"metric": name, "at_most": math.nan})]


@given(st.sampled_from(NAMES))
@settings(max_examples=12)
def test_every_family_is_matched_by_its_name(name: str) -> None:
    strategy, model, mode = name.split("/")
    assert matching(name, NAMES) == [name]
    assert name in matching(f"{strategy}/*/{mode}", NAMES)
    assert name in matching(f"*/{model}/*", NAMES)
    assert name in matching(f"{name}@8gpu", NAMES)


@pytest.mark.parametrize("case", ["dpp/decoder-*/weak", "ddp/decoder-nan/weak", "ddp/*/wek"])
def test_a_misspelt_case_is_reported(case: str) -> None:
    assert unknown({"case": case, "metric": "efficiency"}, KNOWN) is not None


def test_a_script_may_have_any_name() -> None:
    assert unknown({"case": "script/train-own/weak", "metric": "efficiency"}, KNOWN) is None


sides: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["at_least", "at_most"]), st.floats(0, 1), min_size=1
)


@given(sides, sides)
def test_two_rules_contradict_each_other_if_no_value_passes_both(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    rules = [{"case": "a", "metric": "efficiency", **side} for side in (first, second)]
    tried = sorted({0.0, 1.0, *first.values(), *second.values()})
    met = any(
        all(r.get("at_least", 0) <= value <= r.get("at_most", 1) for r in rules) for value in tried
    )
    assert bool([*contradictions(rules)]) is not met
    elsewhere = [rules[0], {**rules[1], "case": "b"}]
    assert not [*contradictions(elsewhere)]
