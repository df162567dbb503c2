"""The pair search names planted nodes and links, whatever their number, in few launches."""

from __future__ import annotations

from hypothesis import given, strategies as st

from harness.measure.slow_nodes import search


def names(count: int) -> list[str]:
    return [str(i) for i in range(count)]


@given(st.data(), st.integers(3, 40))
def test_a_slow_node_is_named(data: st.DataObject, num_nodes: int) -> None:
    bad = data.draw(st.integers(0, num_nodes - 1))
    count = 0

    def measure(a: int, b: int) -> float:
        nonlocal count
        count += 1
        noise = data.draw(st.floats(0.95, 1.05))
        return noise * (30.0 if bad in (a, b) else 100.0)

    found = search(names(num_nodes), measure)
    assert found.nodes == (str(bad),)
    assert found.links == ()
    assert count <= max(6, num_nodes // 2 + 1 + 2 * 2)


@given(st.data(), st.integers(3, 40))
def test_a_slow_link_is_named_when_its_nodes_meet(data: st.DataObject, num_nodes: int) -> None:
    a = 2 * data.draw(st.integers(0, (num_nodes - 2) // 2))
    link = {a, a + 1}
    found = search(names(num_nodes), lambda x, y: 30.0 if {x, y} == link else 100.0)
    assert found.nodes == ()
    assert [{int(p.a), int(p.b)} for p in found.links] == [link]


@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=30))
def test_nothing_is_named_where_nothing_is_slow(noise: list[float]) -> None:
    found = search(names(len(noise)), lambda a, b: 100.0 * min(noise[a], noise[b]) / 0.9)
    assert found.nodes == () and found.links == ()


def test_two_slow_nodes_of_eight_are_both_named() -> None:
    bad = {1, 6}
    found = search(names(8), lambda a, b: 30.0 if bad & {a, b} else 100.0)
    assert {int(n) for n in found.nodes} == bad
