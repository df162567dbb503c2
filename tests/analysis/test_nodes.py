"""Comparing nodes: which node differs from the majority, and in which fact."""

from __future__ import annotations

from hypothesis import given, strategies as st

from harness.analysis.nodes import ABSENT, Drift, Examined, drift


def node(host: str, **facts: str) -> Examined:
    return Examined(host=host, facts=facts, findings=())


def test_the_node_that_differs_is_named_with_its_value() -> None:
    nodes = [node(f"n{i}", driver="580", torch="2.13") for i in range(5)]
    nodes[3] = node("n3", driver="570", torch="2.13")
    assert [*drift(nodes)] == [Drift(fact="driver", usual="580", others=(("n3", "570"),))]


def test_a_fact_that_a_node_lacks_is_a_difference() -> None:
    nodes = [node("a", nvlink="18"), node("b", nvlink="18"), node("c")]
    assert [*drift(nodes)] == [Drift(fact="nvlink", usual="18", others=(("c", ABSENT),))]


def test_host_names_are_not_a_difference() -> None:
    named = [Examined(host=h, facts={"hardware: host": h}, findings=()) for h in "abc"]
    assert not [*drift(named)]


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=9))
def test_nodes_with_the_most_common_value_are_not_reported(values: list[str]) -> None:
    nodes = [node(str(i), fact=value) for i, value in enumerate(values)]
    for seen in drift(nodes):
        assert values.count(seen.usual) == max(map(values.count, values))
        assert {int(host) for host, _ in seen.others} == {
            i for i, value in enumerate(values) if value != seen.usual
        }
    assert bool([*drift(nodes)]) is (len(set(values)) > 1)
